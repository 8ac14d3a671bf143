"""The sample to replay, from a finished report: a window of a lane's arrivals, and who worked on each
when."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.advise.traffic import Delays
from dispatcher.pipeline.hand_overs import MESSAGE
from dispatcher.pipeline.ledger_reading import micros, micros_of
from dispatcher.pipeline.lifecycle import WAITING
from dispatcher.pipeline.report_folder import ReportFolder

#: A window is found to a ten thousandth of what the ledger spans.
_STEPS: Final = 10_000
#: Before the window come this many messages, as a part of its own, so that it does not begin with an empty
#: lane.
WARM_UP_PART: Final = 10


class Sample(NamedTuple):
    """A lane's window as the report has it."""

    lane: str
    options: dict[str, Any]
    messages: list[Any]  # rows: as `_arrivals` and, where that is known, `_worked` have them
    warm_up: int  # how many of them come first and are not counted
    all_messages: int  # of the lane
    ended_us: int  # the last end of anything of the lane, since 1970
    delays: Delays
    incarnations: list[Any]  # rows: prefetch, joined_us, ended_us


class OptionsSince(NamedTuple):
    """A lane's options from then on, µs since 1970."""

    since_us: int
    options: dict[str, Any]


def read_options(spark: SparkSession, folder: ReportFolder) -> dict[str, list[OptionsSince]]:
    """By lane, of every lane of the report, the earliest first."""
    handed = folder.read_finished(spark, "hand_overs").select("lane").distinct().collect()
    found: dict[str, list[OptionsSince]] = {row["lane"]: [] for row in handed}
    rows = folder.small_finished("options").to_pylist()
    for row in sorted(rows, key=lambda row: (row["lane"], row["turn"], row["since"])):
        told = OptionsSince(micros_of(row["since"]), json.loads(row["options"]))
        found.setdefault(row["lane"], []).append(told)
    return found


def read_sample(
    spark: SparkSession, folder: ReportFolder, lane: str, told: list[OptionsSince], limit: int
) -> Sample | None:
    """The busiest window of up to `limit` messages; None: nothing was handed over and settled."""
    of_lane = F.col("lane") == lane
    arrivals = _arrivals(folder.read_finished(spark, "lifecycle").where(of_lane))
    count, first_us, last_us = arrivals.agg(F.count("*"), F.min("at_us"), F.max("at_us")).collect()[0]
    if not count:
        return None
    warm_up = 0
    if count > limit:
        since_us = _busiest(arrivals, first_us, last_us, limit)
        arrivals, warm_up = _around(arrivals, since_us, limit)
    hands = folder.read_finished(spark, "hand_overs").where(of_lane)
    chosen = arrivals.persist()
    try:
        start_us, until_us = chosen.agg(F.min("at_us"), F.max("ended_us")).collect()[0]
        near = hands.where(micros("ended_at") >= F.lit(start_us))
        if until_us is not None:
            near = near.where(micros("ended_at") <= F.lit(until_us))
        delays = _delays(near)
        rows = chosen.join(_worked(near), [*MESSAGE], "left").orderBy("at_us", "arrival_epoch", "arrival")
        messages = rows.collect()
    finally:
        chosen.unpersist()
    if not any(row["settled_us"] is not None for row in messages):
        return None
    ended_us = hands.agg(F.max(micros("ended_at"))).collect()[0][0] or last_us
    return Sample(
        lane, _held(told, messages[warm_up]["at_us"]), messages, warm_up, count, ended_us, delays,
        _incarnations(folder.small_finished("incarnations", lane).to_pylist()),
    )  # fmt: skip


def _arrivals(lifecycle: DataFrame) -> DataFrame:
    """Messages that were work for consumers, or still wait to be."""
    known = lifecycle.where(F.col("received_at").isNotNull())
    return known.where((F.col("hand_overs") > 0) | (F.col("outcome") == WAITING)).select(
        *MESSAGE, "group", "size", "cost", micros("received_at").alias("at_us"),
        micros("first_dispatched_at").alias("dispatched_us"), micros("ended_at").alias("ended_us"),
    )  # fmt: skip


def _busiest(arrivals: DataFrame, first_us: int, last_us: int, limit: int) -> int:
    """When the shortest stretch with `limit` arrivals begins, to a step."""
    width_us = max(1, (last_us - first_us) // _STEPS)
    step = F.floor((F.col("at_us") - first_us) / width_us).cast("long")
    counts = arrivals.groupBy(step.alias("step")).count().orderBy("step").collect()
    best, inside, left = (_STEPS * 2, counts[0]["step"]), 0, 0
    for row in counts:
        inside += row["count"]
        while inside >= limit:
            best = min(best, (row["step"] - counts[left]["step"], counts[left]["step"]))
            inside -= counts[left]["count"]
            left += 1
    return int(first_us + best[1] * width_us)


def _around(arrivals: DataFrame, since_us: int, limit: int) -> tuple[DataFrame, int]:
    """`limit` arrivals from then on, with some before; and how many of these come before."""
    order = ("at_us", "arrival_epoch", "arrival")
    before = arrivals.where(F.col("at_us") < since_us).orderBy(*(F.desc(name) for name in order))
    before = before.limit(limit // WARM_UP_PART).persist()
    after = arrivals.where(F.col("at_us") >= since_us).orderBy(*order).limit(limit)
    return before.unionByName(after), before.count()


def _delays(hands: DataFrame) -> Delays:
    """Medians; the way is half of a confirm's at most, and shorter where consumers settle sooner."""
    median = [
        _percentile(F.when(F.col("wait_cause").isNull(), F.col("wait_us")), 0.5),
        _percentile(F.col("commit_us"), 0.5),
        _percentile(F.col("confirm_us"), 0.5),
        _percentile(F.col("process_us"), 0.05),
    ]
    decide_us, commit_us, confirm_us, soonest_us = (each or 0 for each in hands.agg(*median).collect()[0])
    return Delays(decide_us, commit_us, min(confirm_us, soonest_us // 2))


def _percentile(column: Column, part: float) -> Column:
    return F.percentile_approx(column, part, 10_000)


def _worked(hands: DataFrame) -> DataFrame:
    """By message: its last hand-over of which beginning and end are known."""
    known = hands.where(F.col("outcome").isin([Event.SETTLED, Event.FAILED])).where("process_us is not null")
    if "type" not in known.columns:  # the report is older than that column
        known = known.withColumn("type", F.lit(None).cast("string"))
    last = F.max(
        F.struct(
            "attempt", "consumer", "incarnation", "type", micros("committed_at").alias("committed_us"),
            micros("ended_at").alias("settled_us"),
        )
    )  # fmt: skip
    return known.groupBy(*MESSAGE).agg(last.alias("last")).select(*MESSAGE, "last.*")


def _held(told: list[OptionsSince], at_us: int) -> dict[str, Any]:
    """The options that held then; the first ones if none did."""
    held = [each for each in told if each.since_us <= at_us] or told[:1]
    return held[-1].options if held else {}


def _incarnations(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "prefetch": row["prefetch"],
            **{
                f"{name}_us": None if (at := row[f"{name}_at"]) is None else micros_of(at)
                for name in ("joined", "ended")
            },
        }
        for row in rows
    ]
