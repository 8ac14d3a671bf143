"""Counts, rates and percentiles of every stage, by hour: of lanes, consumers and groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.few_rows import few, sorted_by
from dispatcher.pipeline.work import busy_us

#: Durations of a hand-over, in µs.
STAGES: Final = ("wait_us", "commit_us", "confirm_us", "process_us")
#: What tables of days are made of.
NEEDED: Final = (
    "lane", "inbound", "consumer", "group", "type", "ended_at", "outcome", "size", "cost", *STAGES, "work_us",
)  # fmt: skip
PERCENTILES: Final = (50, 95, 99)
#: Of a percentile's rank: one in this many.
_ACCURACY: Final = 2_000
_SECONDS_PER_HOUR: Final = 3_600
#: Of a timeline: at most this many points of a lane.
POINTS_MAX: Final = 100
_DAY_MS: Final = 86_400_000
#: Of what rows are sorted by first: numbers are compared many times faster than names that begin alike.
_HASH: Final = "key_hash"
_FIRST_DAY: Final = date(1970, 1, 1)
_STEPS_MS: Final = (
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000,
    1_800_000, 3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000, _DAY_MS,
)  # fmt: skip


def lane_stats(hand_overs: DataFrame) -> DataFrame:
    """By lane, inbound queue and hour."""
    return _stats(_with_hour(hand_overs), "lane", "inbound")


def consumer_stats(hand_overs: DataFrame) -> DataFrame:
    """By lane, consumer and hour, with `speed`: cost done in a second of work."""
    found = _stats(_with_hour(hand_overs), "lane", "consumer")
    return found.withColumn("speed", F.when(F.col("busy_us") > 0, F.col("cost") * 1e6 / F.col("busy_us")))


def group_stats(hand_overs: DataFrame) -> DataFrame:
    """By lane, group and hour. There are nearly as many of these as hand-overs: to aggregate each part first
    would only make more of them."""
    of_groups = _with_hour(hand_overs.where(F.col("group").isNotNull()))
    hashed = of_groups.withColumn(_HASH, F.xxhash64("lane", "group", "hour"))
    return _stats(sorted_by(hashed, _HASH, "lane", "group", "day", "hour"), _HASH, "lane", "group")


def step_ms(span_us: int) -> int:
    """How long a point of a timeline over this time is."""
    least_ms = span_us / 1e3 / (POINTS_MAX - 1)  # the first and the last one are parts
    days = math.ceil(least_ms / _DAY_MS)
    return next((step for step in _STEPS_MS if step >= least_ms), days * _DAY_MS)


def timeline_parts(day: str, steps_ms: Iterable[int]) -> set[str]:
    """The parts of a timeline that what ended on this day belongs to: no point is in two of them."""
    number = (date.fromisoformat(day) - _FIRST_DAY).days
    lengths = {max(1, step // _DAY_MS) for step in steps_ms}
    return {_part(number - number % length, length) for length in lengths}


def _part(first_day: int, days: int) -> str:
    name = (_FIRST_DAY + timedelta(days=first_day)).isoformat()
    return name if days == 1 else f"{name}_{days}"


def timeline(spark: SparkSession, hand_overs: DataFrame, steps_ms: Mapping[str, int]) -> DataFrame:
    """By lane and `step_ms` of time: what ended, and percentiles of every stage; `at` is the beginning, and
    `day` the part that it is in. `steps_ms`: how long each lane's step is."""
    steps = spark.createDataFrame(pa.table({
        "lane": pa.array(list(steps_ms), pa.string()),
        "step_ms": pa.array(list(steps_ms.values()), pa.int64()),
    }))  # fmt: skip
    ended = hand_overs.where(F.col("ended_at").isNotNull()).join(few(steps), "lane")
    length = F.col("step_ms")
    at = F.timestamp_millis(F.floor(F.unix_millis("ended_at") / length) * length)
    return (
        ended.withColumn("at", at)
        .groupBy("lane", "at", "step_ms")
        .agg(
            F.count("*").alias("hand_overs"),
            (F.count("*") * 1_000 / length).alias("per_s"),
            _counted(Event.TAKEN_BACK),
            *(percentiles(stage) for stage in STAGES),
        )
        .select(
            "lane", "at", "step_ms", "hand_overs", "per_s", "taken_back", *_percentile_columns(),
            _part_of_point(),
        )
    )  # fmt: skip


def _part_of_point() -> Column:
    """As `timeline_parts`."""
    days = F.floor(F.col("step_ms") / _DAY_MS).cast("string")
    of_days = F.when(F.col("step_ms") > _DAY_MS, F.concat(F.lit("_"), days)).otherwise("")
    return F.concat(F.date_format("at", "yyyy-MM-dd"), of_days).alias("day")


def _percentile_columns() -> list[Column]:
    return [
        F.col(stage)[place].alias(f"{stage.removesuffix('_us')}_p{percent}_us")
        for stage in STAGES
        for place, percent in enumerate(PERCENTILES)
    ]


#: Tables by hour.
BY_HOUR: Final = {"lane_stats": lane_stats, "consumer_stats": consumer_stats, "group_stats": group_stats}


def _with_hour(hand_overs: DataFrame) -> DataFrame:
    """What ended, with the hour in which it did."""
    ended = hand_overs.where(F.col("ended_at").isNotNull())
    return ended.withColumn("hour", F.date_trunc("hour", "ended_at"))


def _stats(ended: DataFrame, *by: str) -> DataFrame:
    """By the `day` and hour in which it ended, from what `work.worked` makes. `busy_us` sums up the work."""
    names = [name for name in by if name != _HASH]
    return (
        ended.groupBy(*by, "day", "hour")
        .agg(
            F.count("*").alias("hand_overs"),
            *(_counted(event) for event in (Event.SETTLED, Event.FAILED, Event.TAKEN_BACK)),
            (F.count("*") / _SECONDS_PER_HOUR).alias("per_s"),
            F.sum("size").alias("bytes"),
            F.sum("cost").alias("cost"),
            busy_us(),
            *(percentiles(stage) for stage in STAGES),
        )
        .select(
            *names, "hour", "hand_overs", "settled", "failed", "taken_back", "per_s", "bytes", "cost",
            "busy_us", *_percentile_columns(), "day",
        )
    )  # fmt: skip


def _counted(event: Event) -> Column:
    return F.count(F.when(F.col("outcome") == event, 1)).alias(event.value)


def percentiles(stage: str) -> Column:
    """A stage's PERCENTILES, as an array of its name."""
    return F.percentile_approx(stage, [percent / 100 for percent in PERCENTILES], _ACCURACY).alias(stage)
