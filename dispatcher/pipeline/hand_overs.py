"""Hand-overs, each once: what one record tells, or two of them, written by one leader or by two.

Instants are structs of (turn, time): leaders on several hosts have several clocks, but what a former one told
came before (`leaderships`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from dispatcher.ledger.schema import HAND_OVER_ENDS, Event
from dispatcher.pipeline.few_rows import few
from dispatcher.pipeline.gaps import BOUNDARIES, END_OF_TIME_US, Gap, GapKind
from dispatcher.pipeline.leaderships import RecordedLeadership

#: What names a hand-over.
KEY: Final = ("lane", "incarnation", "seq")
INCARNATION: Final = ("lane", "incarnation")
#: What names a message.
MESSAGE: Final = ("lane", "inbound", "arrival_epoch", "arrival")
OPEN: Final = "open"
#: What a dispatcher tells of a hand-over consumer whose queue several read.
QUEUE_SHARED: Final = "consumer_queue_shared"
ENDS: Final = [*sorted(HAND_OVER_ENDS), Event.VANISHED]
#: What a later leader's record of an end does not know.
_KNOWN_AT_BEGINNING: Final = (
    "inbound", "arrival_epoch", "arrival", "queue", "group", "group_seq", "epoch", "consumer", "attempt",
    "dispatch_id", "size", "cost", "received_at", "dispatched_at", "committed_at", "confirmed_at",
    "wait_cause", "type",
)  # fmt: skip
_CARRIED: Final = ("turn", "writer", "ordinal", "calls", "reason")
#: Of a record that a later leader made from the journal: the commits that began and ended the hand-over.
_COMMITS: Final = ("since_commit", "until_commit")


def instant(turn: Column, time: Column) -> Column:
    """A place in a lane's time."""
    return F.struct(turn.alias("turn"), time.alias("time"))


class PartTold(StrEnum):
    """What a record tells of a hand-over: all of it, its end only, its beginning."""

    WHOLE, END, BEGINNING = "whole", "end", "beginning"


def hand_overs(
    spark: SparkSession,
    records: DataFrame,
    leaderships: list[RecordedLeadership],
    gaps: list[Gap],
    loose: DataFrame | None = None,
    persist: Callable[[DataFrame], DataFrame] = lambda table: table,
    told: Collection[str] = tuple(PartTold),
) -> DataFrame:
    """One row for each hand-over; if only some are wanted, `loose` are the records about these. `persist`
    keeps a table that is needed several times. `told`: the kinds of records that there are. Spark takes long
    also for kinds of which it finds none, so it is not asked for these.

    `outcome` is the event that ended it, or `open`. `began` is an instant by which its consumer had it;
    `ended` is one until which it surely did: the end, or without one what the ledger still proves.
    """
    of_hand_overs = _with_commits(records if loose is None else loose)
    ends = of_hand_overs.where(F.col("event").isin(ENDS))
    opens = of_hand_overs.where(F.col("event") == Event.DISPATCHED).select(
        *KEY, *_CARRIED, *_KNOWN_AT_BEGINNING, *_COMMITS
    )
    have_ended = PartTold.WHOLE in told or PartTold.END in told
    if len(leaderships) > len({each.lane for each in leaderships}):
        ends = persist(_first_ends(ends)) if have_ended else ends
        opens = persist(_first_told(opens))
    is_whole = F.col("dispatched_at").isNotNull()
    found = []
    if PartTold.END in told:
        found.append(_completed(spark, ends.where(~is_whole), opens, gaps))
    if PartTold.BEGINNING in told:
        unended = opens.join(ends.select(*KEY), [*KEY], "left_anti") if have_ended else opens
        found.append(_unended(spark, unended, gaps))
    if PartTold.WHOLE in told or not found:
        found.append(_shape(ends.where(is_whole), F.col("turn"), F.col("dispatched_at"), F.col("time")))
    return _handed_over(reduce(DataFrame.unionByName, found), records, hand_over_lanes(leaderships))


def what_is_told() -> Column:
    """Of a hand-over, by a record of `about_hand_overs`: PartTold, or null."""
    end = F.when(F.col("dispatched_at").isNotNull(), PartTold.WHOLE).otherwise(PartTold.END)
    is_end, is_beginning = F.col("event").isin(ENDS), F.col("event") == Event.DISPATCHED
    return F.when(is_end, end).when(is_beginning, PartTold.BEGINNING)


def about_hand_overs(records: DataFrame) -> DataFrame:
    """Those that tell of one hand-over."""
    return records.where(F.col("seq").isNotNull() & F.col("incarnation").isNotNull())


def _with_commits(records: DataFrame) -> DataFrame:
    """Records of hand-overs. What the journal told a later leader happened between that one's turn and the
    turn of the one before, in the order of commits."""
    found = about_hand_overs(records)
    is_told_again = F.col("dispatched_at").isNull() & F.col("detail").isNotNull()
    commits = F.from_json("detail", "struct<commits: array<bigint>>")["commits"]
    has_origin = F.col("inbound").isNotNull()
    return found.withColumns({
        # Ledgers have been written where this is the number of a parked message in its parking queue.
        **{name: F.when(has_origin, F.col(name)) for name in ("arrival_epoch", "arrival")},
        **{name: F.when(is_told_again, F.get(commits, place)) for place, name in enumerate(_COMMITS)},
        "turn": F.col("turn") - F.coalesce(is_told_again, F.lit(False)).cast("bigint"),
    })  # fmt: skip


def _first_told(opens: DataFrame) -> DataFrame:
    """Each beginning once: the former leader has told it, and a later one told it again from the journal."""
    names = [name for name in opens.columns if name not in KEY]
    first = F.min_by(F.struct(*names), F.struct("turn", "ordinal"))
    return opens.groupBy(*KEY).agg(first.alias("first")).select(*KEY, "first.*")


def hand_over_lanes(leaderships: Iterable[RecordedLeadership]) -> list[str]:
    """Those where a message is settled when its consumer's queue has it."""
    return sorted({each.lane for each in leaderships if each.options.get("handover")})


def _handed_over(found: DataFrame, records: DataFrame, lanes: list[str]) -> DataFrame:
    """Corrects the hand-overs of hand-over lanes, where a message is settled when its queue has it.

    A message that was read back from there was handed over until then, without effect. `over` is when its
    consumer's queue was read to its end, and `is_shared` that several readers read it: it is not known which
    of them had which message.
    """
    if not lanes:
        nothing = F.lit(None).cast(found.schema["began"].dataType)
        return found.withColumns({"hands_over": F.lit(False), "over": nothing, "is_shared": F.lit(False)})
    here = records.where(F.col("lane").isin(lanes))
    at = instant(F.col("turn"), F.col("time"))

    def first(event: str, *key: str) -> DataFrame:
        return here.where(F.col("event") == event).groupBy("lane", *key).agg(F.min(at).alias(event))

    back = F.col(Event.READ_BACK)
    is_back = back.isNotNull() & F.col("outcome").isin(Event.SETTLED, OPEN)
    return (
        found.join(first(Event.READ_BACK, "incarnation", "seq"), [*KEY], "left")
        .join(first(Event.CONSUMER_TAKEN_BACK, "incarnation"), ["lane", "incarnation"], "left")
        .join(first(QUEUE_SHARED, "consumer"), ["lane", "consumer"], "left")
        .withColumns({
            "outcome": F.when(is_back, Event.TAKEN_BACK).otherwise(F.col("outcome")),
            "ended_at": F.when(is_back, back["time"]).otherwise(F.col("ended_at")),
            "turn": F.when(is_back, back["turn"]).otherwise(F.col("turn")),
            "ended": F.when(is_back, F.greatest(back, F.col("began"))).otherwise(F.col("ended")),
            "hands_over": F.col("lane").isin(lanes),
            "over": F.col(Event.CONSUMER_TAKEN_BACK),
            "is_shared": F.coalesce(F.col(QUEUE_SHARED) < F.greatest("ended", "began"), F.lit(False)),
        })
        .drop(Event.READ_BACK, Event.CONSUMER_TAKEN_BACK, QUEUE_SHARED)
    )  # fmt: skip


def whole(records: DataFrame, *kept: str) -> DataFrame:
    """Hand-overs that one record tells of as a whole, of lanes that do not hand over."""
    ends = about_hand_overs(records).where(F.col("event").isin(ENDS))
    is_whole = F.col("dispatched_at").isNotNull()
    found = _shape(ends.where(is_whole), F.col("turn"), F.col("dispatched_at"), F.col("time"), *kept)
    return _handed_over(found, records, [])


def spans(found: DataFrame) -> DataFrame:
    """Over which numbers the incarnations reach that each leadership tells of."""
    return found.groupBy(*INCARNATION, "turn").agg(
        F.min("seq").alias("lowest"), F.max("seq").alias("highest")
    )


def shared(spans: DataFrame) -> DataFrame:
    """Incarnations of which two leaderships tell the same numbers, and from which number on."""
    later = Window.partitionBy(*INCARNATION).orderBy("turn").rowsBetween(
        Window.currentRow + 1, Window.unboundedFollowing
    )  # fmt: skip
    return (
        spans.withColumn("lowest_later", F.min("lowest").over(later))
        .where(F.col("lowest_later") <= F.col("highest"))
        .groupBy(*INCARNATION)
        .agg(F.min("lowest_later").alias("from_seq"))
    )


def _first_ends(ends: DataFrame) -> DataFrame:
    """Without what a consumer settled once more for a later leader: only incarnations that saw two of them
    can have done that, with numbers that both tell of."""
    marked = ends.join(few(shared(spans(ends))), [*INCARNATION], "left")
    may_repeat = F.col("from_seq").isNotNull() & (F.col("seq") >= F.col("from_seq"))
    told = Window.partitionBy(*KEY).orderBy("turn", "ordinal")
    again = marked.where(may_repeat).withColumn("nth", F.row_number().over(told)).where("nth = 1")
    single = marked.where(~F.coalesce(may_repeat, F.lit(False)))
    return single.drop("from_seq").unionByName(again.drop("from_seq", "nth"))


def _shape(found: DataFrame, began_turn: Column, began_at: Column, ended_at: Column, *kept: str) -> DataFrame:
    return found.select(
        *kept, *KEY, *_CARRIED, *_KNOWN_AT_BEGINNING, F.col("event").alias("outcome"),
        F.col("time").alias("ended_at"), began_turn.alias("began_turn"),
        instant(began_turn, began_at).alias("began"), instant(F.col("turn"), ended_at).alias("ended"),
    )  # fmt: skip


def _completed(spark: SparkSession, ends: DataFrame, opens: DataFrame, gaps: list[Gap]) -> DataFrame:
    """Ends of hand-overs by another leader, or while records were dropped."""
    begun = opens.select(
        *KEY,
        F.col("turn").alias("open_turn"),
        F.col("since_commit").alias("open_since_commit"),
        *(F.col(name).alias(f"open_{name}") for name in _KNOWN_AT_BEGINNING),
    )
    numbers = ("group_seq", "epoch")  # both or none: they may have been given anew
    both = ends.join(begun, [*KEY], "left")
    filled = both.select(
        *KEY, *_CARRIED, "event", "time", "open_turn", "until_commit",
        F.coalesce("since_commit", "open_since_commit").alias("since_commit"),
        *(F.coalesce(F.col(name), F.col(f"open_{name}")).alias(name)
          for name in _KNOWN_AT_BEGINNING if name not in numbers),
        *(F.when(F.col("epoch").isNull(), F.col(f"open_{name}")).otherwise(F.col(name)).alias(name)
          for name in numbers),
    )  # fmt: skip
    dropped = [gap for gap in gaps if gap.kind is GapKind.DROPPED]
    if dropped:
        known_again = gap_spans(spark, dropped)
        conditions = (
            (F.col("lane") == F.col("gap_lane")) & (F.col("turn") == F.col("until.turn"))
            & (F.col("until.time") <= F.col("time"))
        )  # fmt: skip
        others = filled.columns
        filled = (
            filled.join(few(known_again), conditions, "left")
            .groupBy(*others)
            .agg(F.max("until.time").alias("known_again"))
        )
    else:
        filled = filled.withColumn("known_again", F.lit(None).cast("timestamp"))
    began_turn = F.coalesce(F.col("open_turn"), F.col("turn"))
    # It was in its consumer's hands when its leader began, or when records were made again.
    start = F.timestamp_micros(F.lit(0))
    began_at = F.coalesce(F.col("dispatched_at"), _by_commit("since_commit"), F.col("known_again"), start)
    return _shape(filled, began_turn, began_at, F.coalesce(_by_commit("until_commit"), F.col("time")))


def _by_commit(name: str) -> Column:
    """A step has one time, and so has a commit: its number."""
    return F.timestamp_micros(name)


def _unended(spark: SparkSession, opens: DataFrame, gaps: list[Gap]) -> DataFrame:
    """Hand-overs without an end: each lasts until its leadership has ended, or until a gap that may hide its
    end."""
    once = opens.dropDuplicates([*KEY])
    began = instant(F.col("turn"), F.coalesce(F.col("dispatched_at"), _by_commit("since_commit")))
    end = F.timestamp_micros(F.lit(END_OF_TIME_US))
    # A later leader would have told its end, if it had known of it.
    until = instant(F.col("turn"), end)
    hiding = [gap for gap in gaps if gap.kind not in BOUNDARIES]
    if hiding:
        ends = gap_spans(spark, hiding)
        conditions = (F.col("lane") == F.col("gap_lane")) & (F.col("until") > F.col("began"))
        columns = once.columns
        once = (
            once.withColumn("began", began)
            .join(few(ends), conditions, "left")
            .groupBy(*columns)
            .agg(F.min("since").alias("hidden_since"))
        )
        until = F.least(until, F.coalesce(F.col("hidden_since"), until))
    return once.select(
        *KEY, *_CARRIED, *_KNOWN_AT_BEGINNING, F.lit(OPEN).alias("outcome"),
        F.lit(None).cast("timestamp").alias("ended_at"), F.col("turn").alias("began_turn"),
        began.alias("began"), F.greatest(until, began).alias("ended"),
    )  # fmt: skip


def gap_spans(spark: SparkSession, gaps: list[Gap]) -> DataFrame:
    """Gaps as a table: `gap_lane`, `since`, `until`, `gap_text`."""
    table = pa.table({
        "gap_lane": pa.array([gap.lane for gap in gaps], pa.string()),
        "gap_text": pa.array([gap.text for gap in gaps], pa.string()),
        "since_turn": pa.array([gap.since[0] for gap in gaps], pa.int64()),
        "since_us": pa.array([gap.since[1] for gap in gaps], pa.int64()),
        "until_turn": pa.array([gap.until[0] for gap in gaps], pa.int64()),
        "until_us": pa.array([gap.until[1] for gap in gaps], pa.int64()),
    })  # fmt: skip
    return spark.createDataFrame(table).select(
        "gap_lane", "gap_text",
        instant(F.col("since_turn"), F.timestamp_micros("since_us")).alias("since"),
        instant(F.col("until_turn"), F.timestamp_micros("until_us")).alias("until"),
    )  # fmt: skip
