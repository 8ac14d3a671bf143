"""One row for each message: when it reached which stage, what it waited for, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event, WaitCause
from dispatcher.pipeline.few_rows import FEW, few
from dispatcher.pipeline.hand_overs import MESSAGE, OPEN
from dispatcher.pipeline.leaderships import RecordedLeadership
from dispatcher.pipeline.ledger_reading import micros

#: Records about a message that no consumer has, in the order in which the last one counts.
OUTCOMES: Final = (
    Event.DEAD_LETTERED, Event.DROPPED, Event.MOVED, Event.PURGED, Event.DEDUPLICATED, Event.VANISHED,
)  # fmt: skip
_ABOUT: Final = (*OUTCOMES, Event.RECEIVED, Event.PARKED)
WAITING: Final = "waiting"
#: Back in its queue, because its leader is gone: the next one receives it as another arrival.
RETURNED: Final = "returned"
#: Which of them it is depends on the leader.
UNDECIDED: Final = frozenset({WAITING, RETURNED})
#: Durations, in µs, null where they would compare two hosts' clocks.
WAITS: Final = tuple(f"wait_{cause}_us" for cause in WaitCause)


#: Arrivals of a queue that lie together in one block, so that new records concern few blocks.
_BLOCK: Final = 1_000_000
_HAND: Final = (
    "order_turn", "attempt", "dispatched_at", "committed_at", "confirmed_at", "ended_at", "outcome",
    "consumer", "wait_cause", "calls", "turn", "began_turn", "reason", "order_seq",
)  # fmt: skip


def block() -> Column:
    """Which part of the table a message is in."""
    return block_of(block_number())


def block_of(number: Column | str) -> Column:
    """The name of the part with this `block_number`."""
    return F.concat_ws("-", "arrival_epoch", number)


def block_number() -> Column:
    """Of a message among those of its epoch."""
    return F.floor(F.col("arrival") / _BLOCK).cast("bigint")


def is_about() -> Column:
    """Whether a record is about a message that no consumer has."""
    return F.coalesce(F.col("event").isin([*_ABOUT]) & F.col("seq").isNull() & _is_known(), F.lit(False))


def _is_known() -> Column:
    return F.col("inbound").isNotNull() & F.col("arrival_epoch").isNotNull() & F.col("arrival").isNotNull()


def with_durations(hand_overs: DataFrame) -> DataFrame:
    """Hand-overs with `wait_us`, `commit_us`, `confirm_us` and `process_us`; of a retry the wait begins when
    the hand-over before ended, which only its message's other rows know: null."""
    one_clock = F.col("began_turn") == F.col("turn")
    is_first = F.col("attempt") == 1
    return hand_overs.withColumns({
        "wait_us": F.when(is_first, _spent("received_at", "dispatched_at")),
        "commit_us": _spent("dispatched_at", "committed_at"),
        "confirm_us": _spent("committed_at", "confirmed_at"),
        "process_us": F.when(one_clock, _spent("committed_at", "ended_at")),
    })  # fmt: skip


def _spent(since: str, until: str) -> Column:
    spent = _micros_between(since, until)
    return F.when(spent >= 0, spent)


def lifecycle(
    hand_overs: DataFrame,
    records: DataFrame,
    leaderships: Iterable[RecordedLeadership],
    persist: Callable[[DataFrame], DataFrame],
    are_few: bool | None = None,
) -> DataFrame:
    """From hand-overs, and the records about messages that no consumer has. `persist` keeps a table that is
    needed several times; `are_few`: whether those are few of which several records tell; None: they are
    counted."""
    handed = hand_overs.where(_is_known()).select(
        *MESSAGE, "group", "size", "cost", "received_at", "dispatched_at", "committed_at", "confirmed_at",
        "ended_at", "outcome", "attempt", "calls", "consumer", "wait_cause", "turn", "began_turn", "epoch",
        "group_seq", "reason", F.col("began.turn").alias("order_turn"), F.col("seq").alias("order_seq"),
    )  # fmt: skip
    about = records.where(is_about()).select(
        *MESSAGE, "group", "size", "cost", "received_at",
        F.when(F.col("event").isin([*OUTCOMES]), F.struct("turn", "time", "event", "reason")).alias("gone"),
        F.when(F.col("event") == Event.PARKED, F.col("time")).alias("parked_at"),
        F.col("turn").alias("received_turn"),
    )  # fmt: skip
    at_once = F.coalesce((F.col("outcome") == Event.SETTLED) & (F.col("attempt") == 1), F.lit(False))
    others = persist(_told_by_several(handed.where(at_once), handed.where(~at_once), about))
    if are_few or (are_few is None and others.count() <= FEW):
        others = few(others)
    rows = handed.join(others, [*MESSAGE], "left_semi").unionByName(about, allowMissingColumns=True)
    several = rows.groupBy(*MESSAGE).agg(
        F.max("group").alias("group"), F.max("size").alias("size"), F.max("cost").alias("cost"),
        F.min("received_at").alias("received_at"),
        F.sort_array(F.collect_list(F.when(F.col("outcome").isNotNull(), F.struct(*_HAND)))).alias("hands"),
        F.min("parked_at").alias("parked_at"), F.count("parked_at").alias("times_parked"),
        F.max("gone").alias("gone"), F.max("received_turn").alias("received_turn"),
    )  # fmt: skip
    single = handed.where(at_once).join(others, [*MESSAGE], "left_anti")
    return _shown(leaderships, several).unionByName(_settled_at_once(single))


def _told_by_several(at_once: DataFrame, others: DataFrame, about: DataFrame) -> DataFrame:
    """Messages of which more may be told than that they were settled at once: only these need gathering.

    Which were settled twice is looked for by 64 arrivals at a time, one bit each: few of them are, and to
    group by messages costs as much as gathering all.
    """
    together = (*MESSAGE[:-1], "together")
    marked = at_once.select(*MESSAGE, F.shiftright("arrival", 6).alias("together"))
    bit = F.expr("shiftleft(1L, cast(arrival & 63 as int))")
    repeated = (
        marked.groupBy(*together)
        .agg(F.count("*").alias("rows"), F.bit_or(bit).alias("bits"))
        .where(F.col("rows") > F.bit_count("bits"))
    )
    again = marked.join(few(repeated), [*together], "left_semi")
    return others.select(*MESSAGE).union(about.select(*MESSAGE)).union(again.select(*MESSAGE)).distinct()


def _settled_at_once(messages: DataFrame) -> DataFrame:
    """What `_shown` says of messages with one hand-over that settled them, without its lists: of most."""
    one_clock = F.col("began_turn") == F.col("turn")
    total = _micros_between("received_at", "ended_at")
    waited = _micros_between("received_at", "dispatched_at")
    waited = F.when(F.col("began_turn").isNotNull() & (waited > 0), waited)
    waits = [
        F.coalesce(F.when(F.col("wait_cause") == cause, waited), F.lit(0)).cast("bigint").alias(name)
        for cause, name in zip(WaitCause, WAITS, strict=True)
    ]
    return messages.select(
        *MESSAGE, "group", "size", "cost", "received_at", F.lit(None).cast("timestamp").alias("parked_at"),
        F.lit(0).cast("bigint").alias("times_parked"), F.col("dispatched_at").alias("first_dispatched_at"),
        "dispatched_at", "committed_at", "confirmed_at", "ended_at", "outcome", "reason",
        F.lit(1).alias("hand_overs"), F.col("attempt").alias("attempts"),
        F.coalesce("calls", F.lit(0)).alias("calls"), F.array("consumer").alias("consumers"),
        *waits, F.when(one_clock & (total >= 0), total).alias("total_us"),
    )  # fmt: skip


def _micros_between(since: str, until: str) -> Column:
    return micros(until) - micros(since)


def _shown(leaderships: Iterable[RecordedLeadership], messages: DataFrame) -> DataFrame:
    hands = F.col("hands")
    size = F.size(hands)
    first, last = hands[0], F.when(size > 0, F.element_at(hands, -1))
    first = F.when(size > 0, first)
    # A hand-over consumer rejects what its queue has had, which counts as settled.
    is_rejected = (F.col("gone.event") == Event.DEAD_LETTERED) & (
        F.struct("gone.turn", "gone.time") >= F.struct(last["turn"], last["ended_at"])
    )
    is_settled = (last["outcome"] == Event.SETTLED) & ~F.coalesce(is_rejected, F.lit(False))
    outcome = (
        F.when(is_settled, Event.SETTLED)
        .when(F.col("gone").isNotNull(), F.col("gone.event"))
        .when(size > 0, F.coalesce(last["outcome"], F.lit(OPEN)))
        .when(_leads(leaderships), WAITING)
        .otherwise(RETURNED)
    )
    ended_at = F.when(is_settled, last["ended_at"]).otherwise(
        F.coalesce(F.col("gone.time"), F.when(last["outcome"] != Event.TAKEN_BACK, last["ended_at"]))
    )
    ended_turn = F.when(is_settled, last["turn"]).otherwise(F.coalesce(F.col("gone.turn"), last["turn"]))
    one_clock = ended_turn == first["began_turn"]
    total = micros(ended_at) - micros("received_at")
    return messages.select(
        *MESSAGE, "group", "size", "cost", "received_at", "parked_at", "times_parked",
        first["dispatched_at"].alias("first_dispatched_at"), last["dispatched_at"].alias("dispatched_at"),
        last["committed_at"].alias("committed_at"), last["confirmed_at"].alias("confirmed_at"),
        ended_at.alias("ended_at"), outcome.alias("outcome"),
        F.coalesce(last["reason"], F.col("gone.reason")).alias("reason"),
        size.alias("hand_overs"), last["attempt"].alias("attempts"),
        F.aggregate(hands, F.lit(0), lambda all, hand: all + F.coalesce(hand["calls"], F.lit(0))).alias(
            "calls"
        ),
        F.array_distinct(F.transform(hands, lambda hand: hand["consumer"])).alias("consumers"),
        *_waits(hands), F.when(one_clock & (total >= 0), total).alias("total_us"),
    )  # fmt: skip


def _leads(leaderships: Iterable[RecordedLeadership]) -> Column:
    """Whether the leader that received a message may still hold it."""
    last = {each.lane: each for each in sorted(leaderships, key=lambda each: each.turn)}
    leads = F.lit(False)
    for lane, leadership in last.items():
        if leadership.ended is None:
            leads |= (F.col("lane") == lane) & (F.col("received_turn") == leadership.turn)
    return leads


def _waits(hands: Column) -> list[Column]:
    """For each cause the sum over the hand-overs that waited for it last. The first one's wait begins when
    the message was received (if it was parked: before that), a later one's when the one before ended."""

    def waited(place: Column, hand: Column) -> Column:
        before = F.when(place > 0, F.element_at(hands, F.greatest(place, F.lit(1))))
        since = F.when(place > 0, before["ended_at"]).otherwise(F.col("received_at"))
        one_clock = F.coalesce(before["turn"], hand["began_turn"]) == hand["began_turn"]
        spent = micros(hand["dispatched_at"]) - micros(since)
        return F.when(one_clock & (spent > 0), spent).otherwise(F.lit(0))

    def of(cause: WaitCause) -> Column:
        spent = F.transform(
            hands,
            lambda hand, place: F.when(hand["wait_cause"] == cause, waited(place, hand)).otherwise(F.lit(0)),
        )
        return F.aggregate(spent, F.lit(0).cast("bigint"), lambda all, one: all + one)

    return [of(cause).alias(name) for cause, name in zip(WaitCause, WAITS, strict=True)]
