"""Did inbound queues get the shares that their weights say, while several of them had a backlog?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.gaps import END_OF_TIME_US
from dispatcher.pipeline.hand_overs import instant
from dispatcher.pipeline.leaderships import Leadership
from dispatcher.pipeline.ledger_reading import micros


def weights(spark: SparkSession, leaderships: Iterable[Leadership]) -> DataFrame:
    """Weights over time: lane, turn, inbound, weight, since and until (µs)."""
    rows = []
    for leadership in leaderships:
        told = [fact for fact in leadership.facts if isinstance(fact.detail.get("inbounds"), list)]
        ends = [fact.time_us for fact in told[1:]] + [END_OF_TIME_US]
        for fact, until_us in zip(told, ends, strict=False):
            known = [each for each in fact.detail["inbounds"] if _is_weight(each)]
            rows += [
                (leadership.lane, leadership.turn, each["queue"], each["weight"], fact.time_us, until_us)
                for each in known
            ]
    columns = list(zip(*rows, strict=True)) or [()] * 6
    types = (pa.string(), pa.int64(), pa.string(), pa.int64(), pa.int64(), pa.int64())
    names = ["lane", "turn", "inbound", "weight", "weight_since_us", "weight_until_us"]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return spark.createDataFrame(pa.table(arrays, names))


def _is_weight(inbound: Any) -> bool:
    if not isinstance(inbound, dict) or not isinstance(inbound.get("queue"), str):
        return False
    return isinstance(inbound.get("weight"), int) and inbound["weight"] > 0


def contested(records: DataFrame, weights: DataFrame) -> DataFrame:
    """Stretches between two samples over which a queue and at least one other had a backlog at both ends:
    what the queue got, what all of these got, and its part by their weights."""
    of_queue = Window.partitionBy("lane", "writer", "inbound").orderBy("ordinal")
    samples = records.where(F.col("event") == Event.SAMPLED).select(
        "lane", "writer", "turn", "inbound", "ordinal", "time", "waiting", "cost", "messages"
    )
    stretches = samples.withColumns({
        "since": F.lag("time").over(of_queue),
        "got": F.col("cost") - F.lag("cost").over(of_queue),
        "waited": F.lag("waiting").over(of_queue),
    }).where((F.col("waiting") > 0) & (F.col("waited") > 0) & (F.col("got") >= 0))  # fmt: skip
    weighed = stretches.join(F.broadcast(weights), ["lane", "turn", "inbound"]).where(
        (micros("since") >= F.col("weight_since_us")) & (micros("time") <= F.col("weight_until_us"))
    )
    together = Window.partitionBy("lane", "writer", "since", "time")
    return weighed.withColumns({
        "queues": F.count("*").over(together),
        "all_got": F.sum("got").over(together),
        "part": F.col("weight") / F.sum("weight").over(together),
    }).where("queues > 1")  # fmt: skip


def fairness(contested: DataFrame) -> DataFrame:
    """One row for each inbound queue: `got` and `entitled` cost, `ratio` of both, `contested_s`, and
    `starved_s`: for how long in one stretch it got nothing while others did. `jain` is the lane's: Jain's
    index over its queues' ratios, 1 when all got their part, 1 / their number when one got everything."""
    of_queue = Window.partitionBy("lane", "inbound").orderBy("turn", "time")
    starves = (F.col("got") == 0) & (F.col("all_got") > 0)
    length = (micros("time") - micros("since")) / 1e6
    marked = contested.withColumn("fed", F.sum(F.when(starves, 0).otherwise(1)).over(of_queue))
    stretch = Window.partitionBy("lane", "inbound", "fed")
    starved = F.sum(F.when(starves, length).otherwise(0.0)).over(stretch)
    found = (
        marked.withColumn("starved", starved)
        .groupBy("lane", "inbound")
        .agg(
            F.max_by("weight", instant(F.col("turn"), F.col("time"))).alias("weight"),
            F.sum(length).alias("contested_s"),
            F.sum("got").alias("got"),
            F.sum(F.col("all_got") * F.col("part")).alias("entitled"),
            F.max("starved").alias("starved_s"),
        )
        .withColumn("ratio", F.when(F.col("entitled") > 0, F.col("got") / F.col("entitled")))
    )
    squares = F.sum(F.col("ratio") * F.col("ratio")).over(Window.partitionBy("lane"))
    total = F.sum("ratio").over(Window.partitionBy("lane"))
    count = F.count("ratio").over(Window.partitionBy("lane"))
    return found.withColumn("jain", F.when(squares > 0, total * total / (count * squares)))
