"""Did inbound queues get the shares that their weights say, while there was a choice between them?

A queue is backlogged only while something in it could be handed over. That depends on its pool: its
group's owner, or any consumer. So shares are counted by pool: a pool has the messages that may go to one
incarnation only, or those that may go to all free ones. In a pool every message that is handed over was a
choice between the queues that had one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from dispatcher.ledger.schema import WaitCause
from dispatcher.pipeline.few_rows import few
from dispatcher.pipeline.gaps import END_OF_TIME_US
from dispatcher.pipeline.leaderships import RecordedLeadership
from dispatcher.pipeline.ledger_reading import micros
from dispatcher.pipeline.lifecycle import WAITING
from dispatcher.pipeline.ranges import BEFORE, Ranges, largest, within_range, without_copies
from dispatcher.pipeline.report_folder import arrow_table

#: A pool's queues are compared by whole seconds.
_SECOND_US: Final = 1_000_000
_POOL: Final = ("lane", "turn", "pool")
#: Who waited for these last could have been handed over all the time, had others not been chosen.
_CHOSEN_BETWEEN: Final = (WaitCause.TURN, WaitCause.WINDOW)
#: What operators, or a failure, did to groups that may wait for it since.
_HELD: Final = ("group_paused", "group_pinned", "group_stopped")
#: The table `fairness` of a ledger that had no choice: Spark takes long to find that out.
NO_ROWS: Final = arrow_table(
    [], lane=pa.string(), inbound=pa.string(), weight=pa.int64(), contested_s=pa.float64(), got=pa.int64(),
    entitled=pa.float64(), starved_s=pa.float64(), ratio=pa.float64(), jain=pa.float64(),
)  # fmt: skip


def weights(spark: SparkSession, leaderships: Iterable[RecordedLeadership]) -> DataFrame:
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


def have_choice(leaderships: Iterable[RecordedLeadership]) -> bool:
    """Whether any of them had several inbound queues."""
    return any(
        isinstance(told := fact.detail.get("inbounds"), list) and len(told) > 1
        for leadership in leaderships for fact in leadership.facts
    )  # fmt: skip


def _is_weight(inbound: Any) -> bool:
    if not isinstance(inbound, dict) or not isinstance(inbound.get("queue"), str):
        return False
    return isinstance(inbound.get("weight"), int) and inbound["weight"] > 0


def contested(told: DataFrame, left: DataFrame | None, weights: DataFrame) -> DataFrame:
    """Seconds over all of which a queue and at least one other had something for the same pool: lane, turn,
    `second`, inbound, `weight`; what the queue `got` of what these pools took, `all_got`, and its part of
    that by the weights, `entitled`. From what `with_pool` and `left_over` make; `left` None: nothing is."""
    counted = _counted(told)
    queues = few(weights.withColumnRenamed("turn", "of_turn").withColumnRenamed("lane", "of_lane"))
    second_us = F.col("second") * _SECOND_US
    is_now = (
        (F.col("lane") == F.col("of_lane")) & (F.col("turn") == F.col("of_turn"))
        & (second_us >= F.col("weight_since_us")) & (second_us + _SECOND_US <= F.col("weight_until_us"))
    )  # fmt: skip
    # Also a queue of which nothing happens in a second may have something for the pool.
    given = counted.where("got > 0").select(*_POOL, "second").distinct()
    grid = given.join(queues, is_now).select(*_POOL, "second", "inbound", "weight")
    both = counted.unionByName(grid, allowMissingColumns=True)
    if left is not None:
        both = both.unionByName(_of_pools(left, counted), allowMissingColumns=True)
    rows = both.groupBy(*_POOL, "inbound", "second").agg(
        F.max("weight").alias("weight"),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("came", "went", "got")),
    )
    before = Window.partitionBy(*_POOL, "inbound").orderBy("second").rowsBetween(*BEFORE)
    there = F.sum(F.col("came") - F.col("went")).over(before)
    together = Window.partitionBy(*_POOL, "second")
    choices = (
        rows.withColumn("there", there).where("there > went and weight is not null")
        .withColumns({
            "queues": F.count("*").over(together), "all_got": F.sum("got").over(together),
            "part": F.col("weight") / F.sum("weight").over(together),
        })
        .where("queues > 1 and all_got > 0")
    )  # fmt: skip
    return choices.groupBy("lane", "turn", "second", "inbound").agg(
        F.max("weight").alias("weight"), F.sum("got").alias("got"), F.sum("all_got").alias("all_got"),
        F.sum(F.col("all_got") * F.col("part")).alias("entitled"),
    )  # fmt: skip


def _lanes(spark: SparkSession, leaderships: Iterable[RecordedLeadership]) -> DataFrame:
    """What each leadership's options say of pools; `is_last` of its lane."""
    known = list(leaderships)
    last = {each.lane: each.turn for each in sorted(known, key=lambda each: each.turn)}
    return few(spark.createDataFrame(pa.table({
        "lane": pa.array([each.lane for each in known], pa.string()),
        "turn": pa.array([each.turn for each in known], pa.int64()),
        "is_owned": [_keeps_owner(each.options) for each in known],
        "is_alone": [_is_alone(each.options) for each in known],
        "has_buckets": [each.options.get("buckets") is not None for each in known],
        "is_last": [last[each.lane] == each.turn for each in known],
    })))  # fmt: skip


def with_pool(
    spark: SparkSession, hand_overs: DataFrame, leaderships: Iterable[RecordedLeadership], ranges: Ranges
) -> DataFrame:
    """First hand-overs with `pool`, and since and until when each could have been made (µs)."""
    known = list(leaderships)
    until = micros("dispatched_at")
    told = hand_overs.where("began_turn = turn and dispatched_at is not null and inbound is not null")
    told = told.join(_lanes(spark, known), ["lane", "turn"]).withColumns({
        "until_us": until, "ended_us": micros("ended_at"),
        "pool": F.when(F.col("is_owned") & (F.col("group_seq") > 0), F.col("incarnation")).otherwise(""),
    })  # fmt: skip
    free_us: Column = F.lit(None).cast("bigint")
    alone = told.where("is_alone")
    if any(_is_alone(each.options) for each in known):
        group = ("lane", "turn", "group")
        alone = ranges.cut(alone, group, [F.col("until_us")], largest(group, "until_us", "ended_us"))
        earlier = Window.partitionBy(*within_range(alone, group)).orderBy("until_us").rangeBetween(*BEFORE)
        alone = without_copies(alone.withColumn("free_us", F.max("ended_us").over(earlier)))
    else:
        alone = alone.withColumn("free_us", free_us)
    both = alone.unionByName(told.where("not is_alone").withColumn("free_us", free_us))
    return both.where("attempt = 1 and received_at is not null").withColumn(
        "since_us",
        F.when(
            F.col("wait_cause").isin([*_CHOSEN_BETWEEN]), F.greatest(micros("received_at"), F.col("free_us"))
        ).otherwise(F.col("until_us")),
    )


def _keeps_owner(options: dict[str, Any]) -> bool:
    """Whether what waits of a group may go to its owner only."""
    return options.get("policy") == "exclusive" or bool(options.get("tops_up"))


def _is_alone(options: dict[str, Any]) -> bool:
    """Whether what waits of a group can't go while anything of it is out."""
    is_batched = options.get("policy") == "sequenced" and not options.get("tops_up")
    return is_batched or bool(options.get("stops_failed"))


def left_over(
    spark: SparkSession, messages: DataFrame, hand_overs: DataFrame, records: DataFrame,
    leaderships: Iterable[RecordedLeadership],
) -> DataFrame:  # fmt: skip
    """What still waits at the end of the ledger and could go: lane, turn, inbound, since when (`since_us`),
    and `pool`, null for every pool. Left out are parked messages, messages of groups that operators may hold,
    and in a lane with buckets messages of groups that no consumer had."""
    lanes = _lanes(spark, leaderships).where("is_last")
    held = records.where(F.col("event").isin([*_HELD]) & F.col("group").isNotNull()).select("lane", "group")
    waiting = (
        messages.where((F.col("outcome") == WAITING) & (F.col("times_parked") == 0))
        .select("lane", "inbound", "group", "received_at")
        .join(held.distinct(), ["lane", "group"], "left_anti")
        .join(lanes, "lane")
    )
    group = ["lane", "turn", "group"]
    theirs = hand_overs.join(few(waiting.select(*group).distinct()), group)
    last = theirs.groupBy(*group).agg(
        F.max_by("incarnation", F.struct("epoch", "group_seq")).alias("owner"),
        F.max(micros("ended_at")).alias("free_us"),
        F.max(F.col("ended_at").isNull()).alias("is_out"),
    )
    found = waiting.join(last, group, "left")
    is_free = ~F.col("is_alone") | ~F.coalesce("is_out", F.lit(False))
    is_known = F.col("owner").isNotNull() | ~F.col("has_buckets")
    since_us = micros("received_at")
    free_us = F.when(F.col("is_alone"), F.col("free_us"))
    return found.where(is_free & is_known).select(
        "lane", "turn", "inbound",
        F.greatest(since_us, free_us).alias("since_us"),
        F.when(F.col("is_owned") & F.col("group").isNotNull(), F.col("owner")).otherwise("").alias("pool"),
    )  # fmt: skip


def _of_pools(left: DataFrame, counted: DataFrame) -> DataFrame:
    """Like `_counted`, for the messages that are left over."""
    seconds = left.withColumn("second", F.floor(F.col("since_us") / _SECOND_US).cast("bigint"))
    came = seconds.groupBy("lane", "turn", "pool", "inbound", "second").agg(F.count("*").alias("came"))
    pools = counted.select(*(F.col(name).alias(f"of_{name}") for name in _POOL)).distinct()
    is_in = (
        (F.col("lane") == F.col("of_lane")) & (F.col("turn") == F.col("of_turn"))
        & F.coalesce(F.col("pool") == F.col("of_pool"), F.lit(True))
    )  # fmt: skip
    return came.join(few(pools), is_in).select(
        "lane", "turn", F.col("of_pool").alias("pool"), "inbound", "second", "came"
    )


def _counted(told: DataFrame) -> DataFrame:
    """By pool, queue and second: what `came` to be handed over in a later one, what `went` that had come in
    an earlier one, and the cost of all that the queue `got`."""
    came, went = (F.floor(F.col(name) / _SECOND_US).cast("bigint") for name in ("since_us", "until_us"))
    waits = F.when(came < went, 1).otherwise(0).cast("bigint")
    none = F.lit(0).cast("bigint")
    events = F.explode(F.array(
        F.struct(came.alias("second"), waits.alias("came"), none.alias("went"), none.alias("got")),
        F.struct(went.alias("second"), none.alias("came"), waits.alias("went"), F.col("cost").alias("got")),
    )).alias("event")  # fmt: skip
    found = told.select(*_POOL, "inbound", events).select(*_POOL, "inbound", "event.*")
    return found.groupBy(*_POOL, "inbound", "second").agg(
        *(F.sum(name).alias(name) for name in ("came", "went", "got"))
    )


def fairness(contested: DataFrame) -> DataFrame:
    """One row for each inbound queue: `got` and `entitled` cost, `ratio` of both, `contested_s`, and
    `starved_s`: for how many seconds in a row it got nothing while others did. `jain` is the lane's: Jain's
    index over its queues' ratios, 1 when all got their part, 1 / their number when one got everything."""
    of_queue = Window.partitionBy("lane", "inbound").orderBy("turn", "second")
    starves = (F.col("got") == 0) & (F.col("all_got") > 0)
    marked = contested.withColumn("fed", F.sum(F.when(starves, 0).otherwise(1)).over(of_queue))
    stretch = Window.partitionBy("lane", "inbound", "fed")
    found = (
        marked.withColumn("starved", F.sum(starves.cast("double")).over(stretch))
        .groupBy("lane", "inbound")
        .agg(
            F.max_by("weight", F.struct("turn", "second")).alias("weight"),
            F.count("*").cast("double").alias("contested_s"),
            F.sum("got").alias("got"),
            F.sum("entitled").alias("entitled"),
            F.max("starved").alias("starved_s"),
        )
        .withColumn("ratio", F.when(F.col("entitled") > 0, F.col("got") / F.col("entitled")))
    )
    squares = F.sum(F.col("ratio") * F.col("ratio")).over(Window.partitionBy("lane"))
    total = F.sum("ratio").over(Window.partitionBy("lane"))
    count = F.count("ratio").over(Window.partitionBy("lane"))
    return found.withColumn("jain", F.when(squares > 0, total * total / (count * squares)))
