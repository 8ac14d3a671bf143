"""When a lane stood still: messages waited, somebody was there to take them, and none was handed over.

The samples of a leadership tell it: their number of hand-overs so far does not change from one to the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.gaps import Window as TimeWindow
from dispatcher.pipeline.hand_overs import MESSAGE
from dispatcher.pipeline.leaderships import RecordedLeadership
from dispatcher.pipeline.ledger_reading import micros, within
from dispatcher.pipeline.lifecycle import UNDECIDED

#: Shorter ones are none: the samples of a lane whose messages take seconds look the same.
STALL_US: Final = 10_000_000
_PAUSED, _RESUMED = "lane_paused", "lane_resumed"
#: What holds a group, or lets it go on, until an operator does the opposite.
_HELD: Final = ("group_paused", "group_stopped")
_FREED: Final = ("group_resumed", "group_released", "group_skipped", "group_dropped")
_CHANGES: Final = (
    Event.LANE_STARTED, _PAUSED, _RESUMED, Event.CONSUMER_JOINED, Event.CONSUMER_TAKEN_BACK, *_HELD, *_FREED,
)  # fmt: skip
_BEGAN: Final = "struct<paused: boolean, consumers: array<struct<consumer: string>>>"
_SO_FAR: Final = (Window.unboundedPreceding, Window.currentRow)


def stalls(records: DataFrame, window: TimeWindow) -> DataFrame:
    """One row for each stretch of samples of a leadership that is STALL_US long or longer: lane, `since` and
    `until` (its first and last sample), `waiting` and `in_flight` (the most), `ended` (how many of those in
    flight), and `held_groups`: how many groups an operator or a failure held then, at most.

    `records` are those of all time: whether the lane was paused, and who was there, may be told before the
    window.
    """
    leadership = Window.partitionBy("lane", "turn", "writer").orderBy("ordinal")
    lane = Window.partitionBy("lane").orderBy("turn", "writer", "ordinal").rowsBetween(*_SO_FAR)
    so_far = leadership.rowsBetween(*_SO_FAR)
    told = _samples(within(records, window)).unionByName(_changes(records), allowMissingColumns=True)
    told = told.withColumns({
        "is_paused": F.coalesce(F.last("paused", ignorenulls=True).over(so_far), F.lit(False)),
        "there": F.coalesce(F.sum("came").over(so_far), F.lit(0)),
        "held_groups": F.greatest(F.coalesce(F.sum("held").over(lane), F.lit(0)), F.lit(0)),
    }).where("waiting is not null")  # fmt: skip
    # Who has messages in hand is there, also if the ledger does not have the record of its coming.
    is_ready = "waiting > 0 and not is_paused and (there > 0 or in_flight > 0)"
    told = told.withColumn("is_ready", F.expr(is_ready))
    goes_on = F.lag("is_ready").over(leadership) & F.col("is_ready")
    goes_on &= F.lag("handed_over").over(leadership) == F.col("handed_over")
    begins = (~F.coalesce(goes_on, F.lit(False))).cast("int")
    stretches = told.withColumn("begins", begins).withColumn("stretch", F.sum("begins").over(so_far))
    return (
        stretches.where("is_ready")
        .groupBy("lane", "turn", "writer", "stretch")
        .agg(
            F.min("time").alias("since"), F.max("time").alias("until"), F.max("waiting").alias("waiting"),
            F.max("in_flight").alias("in_flight"),
            (F.max("in_flight") - F.min("in_flight")).alias("ended"),
            F.max("held_groups").alias("held_groups"),
        )
        .where(micros("until") - micros("since") >= STALL_US)
        .drop("turn", "writer", "stretch")
    )  # fmt: skip


def _samples(records: DataFrame) -> DataFrame:
    """Those of all queues that were taken together, as one row."""
    return (
        records.where(F.col("event") == Event.SAMPLED)
        .groupBy("lane", "turn", "writer", "time")
        .agg(
            F.max("ordinal").alias("ordinal"), F.sum("waiting").alias("waiting"),
            F.sum("in_flight").alias("in_flight"), F.sum("messages").alias("handed_over"),
        )
    )  # fmt: skip


def _changes(records: DataFrame) -> DataFrame:
    """What changes whether messages could go: `paused` from then on, how many consumers `came` (or went), and
    whether one group more is `held` (or less)."""
    event = F.col("event")
    began = F.when(event == Event.LANE_STARTED, F.from_json("detail", _BEGAN))
    return records.where(event.isin([*_CHANGES])).select(
        "lane", "turn", "writer", "ordinal",
        F.when(event == _PAUSED, True).when(event == _RESUMED, False).otherwise(began["paused"])
        .alias("paused"),
        _counted(event, [Event.CONSUMER_JOINED], [Event.CONSUMER_TAKEN_BACK], F.size(began["consumers"]))
        .alias("came"),
        _counted(event, _HELD, _FREED, F.lit(0)).alias("held"),
    )  # fmt: skip


def _counted(event: Column, more: Iterable[str], less: Iterable[str], others: Column) -> Column:
    one = F.when(event.isin([*more]), 1).when(event.isin([*less]), -1)
    return one.otherwise(F.greatest(others, F.lit(0)))


def left_waiting(
    messages: DataFrame, records: DataFrame, leaderships: Iterable[RecordedLeadership]
) -> DataFrame:
    """By lane, how many messages its last leader had read and nobody had got when the ledger ends."""
    last = {each.lane: each.turn for each in sorted(leaderships, key=lambda each: each.turn)}
    turns: list[Any] = [(F.col("lane") == lane) & (F.col("turn") == turn) for lane, turn in last.items()]
    is_last = reduce(Column.__or__, turns, F.lit(False))
    told = records.where(F.col("event").isin([Event.RECEIVED, Event.PARKED]) & is_last)
    undecided = messages.where(F.col("outcome").isin([*UNDECIDED])).select(*MESSAGE)
    found = undecided.join(told.select(*MESSAGE).distinct(), [*MESSAGE], "left_semi")
    return found.groupBy("lane").agg(F.count("*").alias("left"))
