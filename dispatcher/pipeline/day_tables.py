"""Tables that are made of each UTC day alone, or of what each day adds up to: a new date changes few days."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatcher.pipeline import cost_model, hot_groups, statistics, work
from dispatcher.pipeline.memory import digest
from dispatcher.pipeline.pieces import Pieces
from dispatcher.pipeline.ranges import Ranges
from dispatcher.pipeline.report_folder import COSTS, SHARES

_DAYS: Final = "days"
_MADE: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {
    **statistics.BY_HOUR,
    SHARES: hot_groups.shares,
    COSTS: cost_model.measured,
}


def write_day_tables(spark: SparkSession, pieces: Pieces, spans_us: dict[str, int], ranges: Ranges) -> None:
    """Statistics by hour, timelines (`spans_us`: how long each lane's records reach), and what hot groups and
    the cost model are added up from."""
    of_days: dict[tuple[str, ...], DataFrame] = {}

    def worked(days: list[str]) -> DataFrame:
        if tuple(days) not in of_days:
            hands = pieces.hand_overs(_DAYS, days)
            hands = hands.withColumn("day", F.to_date("ended_at"))
            found = work.worked(hands, ranges, "day").select(*statistics.NEEDED, "day")
            of_days[tuple(days)] = found.persist(StorageLevel.DISK_ONLY)
        return of_days[tuple(days)]

    try:
        for name, transform in _MADE.items():
            pieces.remake(name, _DAYS, _applied(transform, worked))
        _write_timeline(spark, pieces, spans_us, of_days)
    finally:
        for each in of_days.values():
            each.unpersist()


def _applied(
    transform: Callable[[DataFrame], DataFrame], worked: Callable[[list[str]], DataFrame]
) -> Callable[[list[str]], DataFrame]:
    """With names of days: as text they would make all rows longer."""
    return lambda days: transform(worked(days)).withColumn("day", F.col("day").cast("string"))


def _write_timeline(
    spark: SparkSession, pieces: Pieces, spans_us: dict[str, int], of_days: dict[tuple[str, ...], DataFrame]
) -> None:
    """A point of several days is made of all of them; when a lane's points become longer, all are."""
    steps_ms = {lane: statistics.step_ms(span_us) for lane, span_us in sorted(spans_us.items())}
    parts = {day: statistics.timeline_parts(day, steps_ms.values()) for day in pieces.parts(_DAYS)}

    def made(todo: list[str]) -> DataFrame:
        days = sorted(day for day, theirs in parts.items() if theirs & {*todo})
        hands = of_days.get(tuple(days), pieces.hand_overs(_DAYS, days))
        points = statistics.timeline(spark, hands, steps_ms)
        return points.where(F.col("day").isin(todo))

    pieces.remake("timeline", _DAYS, made, dict.fromkeys(parts, digest(steps_ms.items())), parts)
