"""Counts, rates and percentiles of every stage, by hour: of lanes, consumers and groups."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event

#: Durations of a hand-over, in µs.
STAGES: Final = ("wait_us", "commit_us", "confirm_us", "process_us")
PERCENTILES: Final = (50, 95, 99)
#: Of a percentile's rank: one in so many.
_ACCURACY: Final = 2_000
_SECONDS_PER_HOUR: Final = 3_600


def lane_stats(hand_overs: DataFrame) -> DataFrame:
    """By lane, inbound queue and hour."""
    return _stats(hand_overs, "lane", "inbound")


def consumer_stats(hand_overs: DataFrame) -> DataFrame:
    """By lane, consumer and hour, with `speed`: cost done in a second of work."""
    found = _stats(hand_overs, "lane", "consumer")
    return found.withColumn("speed", F.when(F.col("busy_us") > 0, F.col("cost") * 1e6 / F.col("busy_us")))


def group_stats(hand_overs: DataFrame) -> DataFrame:
    """By lane, group and hour."""
    return _stats(hand_overs.where(F.col("group").isNotNull()), "lane", "group")


def _stats(hand_overs: DataFrame, *by: str) -> DataFrame:
    """What ended, by the hour in which it did. `busy_us` sums up what consumers took."""
    ended = hand_overs.where(F.col("ended_at").isNotNull())
    return (
        ended.withColumn("hour", F.date_trunc("hour", "ended_at"))
        .groupBy(*by, "hour")
        .agg(
            F.count("*").alias("hand_overs"),
            *(_counted(event) for event in (Event.SETTLED, Event.FAILED, Event.TAKEN_BACK)),
            (F.count("*") / _SECONDS_PER_HOUR).alias("per_s"),
            F.sum("size").alias("bytes"),
            F.sum("cost").alias("cost"),
            F.sum("process_us").alias("busy_us"),
            *(percentiles(stage) for stage in STAGES),
        )
        .select(
            *by, "hour", "hand_overs", "settled", "failed", "taken_back", "per_s", "bytes", "cost", "busy_us",
            *(F.col(stage)[place].alias(f"{stage.removesuffix('_us')}_p{percent}_us")
              for stage in STAGES for place, percent in enumerate(PERCENTILES)),
        )
    )  # fmt: skip


def _counted(event: Event) -> Column:
    return F.count(F.when(F.col("outcome") == event, 1)).alias(event.value)


def percentiles(stage: str) -> Column:
    """A stage's PERCENTILES, as an array of its name."""
    return F.percentile_approx(stage, [percent / 100 for percent in PERCENTILES], _ACCURACY).alias(stage)
