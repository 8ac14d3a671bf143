"""When a lane stood still: messages waited, and for a while none was handed over; and what was left.

Both come from the samples that a leader makes once a second (docs/ledger.md).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.ledger_reading import micros

#: A shorter one may be a consumer's ordinary work.
AT_LEAST_S: Final = 10
_PAUSED, _RESUMED = "lane_paused", "lane_resumed"
_LEADERSHIP: Final = ("lane", "turn")


def stalls(records: DataFrame) -> DataFrame:
    """One row for each stretch of at least AT_LEAST_S over which every sample has waiting messages and none
    was handed over: lane, turn, `since` and `until` (its first and last sample), the most that were `waiting`
    and `in_flight` at a time, and `is_paused`: an operator had paused the lane at its end.

    A leader counts its hand-overs, so all samples with one count are of one stretch; it is cut where nothing
    waited."""
    by_time = Window.partitionBy(*_LEADERSHIP, "handed").orderBy("time")
    samples = _samples(records, *_LEADERSHIP, "time").withColumn(
        "cut", F.sum((F.col("waiting") == 0).cast("bigint")).over(by_time)
    )
    found = (
        samples.where("waiting > 0")
        .groupBy(*_LEADERSHIP, "handed", "cut")
        .agg(
            F.min("time").alias("since"), F.max("time").alias("until"),
            F.max("waiting").alias("waiting"), F.max("in_flight").alias("in_flight"),
        )
        .where(micros("until") - micros("since") >= AT_LEAST_S * 1_000_000)
        .drop("handed", "cut")
    )  # fmt: skip
    switches = records.where(F.col("event").isin(_PAUSED, _RESUMED, Event.LANE_STARTED)).select(
        "lane", F.col("turn").alias("of_turn"), F.col("time").alias("at"), "ordinal",
        (
            (F.col("event") == _PAUSED)
            | F.coalesce(F.get_json_object("detail", "$.paused") == "true", F.lit(False))
        ).alias("paused"),
    )  # fmt: skip
    names = [*_LEADERSHIP, "since", "until", "waiting", "in_flight"]
    is_before = (F.col("turn") == F.col("of_turn")) & (F.col("at") <= F.col("until"))
    last = F.max_by("paused", F.struct("at", "ordinal"))
    both = found.join(switches.withColumnRenamed("lane", "of_lane"),
                      (F.col("lane") == F.col("of_lane")) & is_before, "left")  # fmt: skip
    return both.groupBy(*names).agg(F.coalesce(last, F.lit(False)).alias("is_paused"))


def left(records: DataFrame) -> DataFrame:
    """By lane, as its last sample has it: `at`, how many messages were `waiting` and `in_flight`, and whether
    more was in a queue than the look-ahead lets in (`is_more`)."""
    last = F.max_by(F.struct("time", "waiting", "in_flight", "is_more"), F.struct("turn", "time"))
    found = _samples(records, *_LEADERSHIP, "time").groupBy("lane").agg(last.alias("last"))
    return found.select(
        "lane", F.date_format("last.time", "yyyy-MM-dd HH:mm:ss").alias("at"), "last.waiting",
        "last.in_flight", "last.is_more",
    )  # fmt: skip


def _samples(records: DataFrame, *by: str) -> DataFrame:
    """Those of all inbound queues of a lane at one time together."""
    is_full = F.get_json_object("detail", "$.full") == "true"
    return (
        records.where(F.col("event") == Event.SAMPLED)
        .groupBy(*by)
        .agg(
            F.sum("messages").alias("handed"), F.sum("waiting").alias("waiting"),
            F.sum("in_flight").alias("in_flight"), F.max(F.coalesce(is_full, F.lit(False))).alias("is_more"),
        )
    )  # fmt: skip
