"""Was order kept, and did no two consumers have one group at a time: exact, for every group.

The rules are those of docs/ledger.md. Every group is screened in one sort of its hand-overs. Only those with
something remarkable (an overlap, a step back) go through `violations`, which finds each
hand-over that broke a rule, with the one against which it did. A group with very many hand-overs is judged in
`ranges` of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.few_rows import few
from dispatcher.pipeline.gaps import BOUNDARIES, END_OF_TIME_US, Gap
from dispatcher.pipeline.hand_overs import MESSAGE, OPEN, gap_spans, instant
from dispatcher.pipeline.leaderships import COUNTER_SHIFT, GROUPS_MOVING, RecordedLeadership
from dispatcher.pipeline.ledger_reading import micros
from dispatcher.pipeline.ranges import (
    BEFORE,
    RANGE,
    Leading,
    Ranges,
    leading,
    originals,
    within_range,
    without_copies,
)

GROUP: Final = ("lane", "group")
KEPT, VIOLATED, UNKNOWN = "kept", "violated", "unknown"
#: What evidence says of each of the two hand-overs.
EVIDENCE: Final = (
    "arrival_epoch", "arrival", "epoch", "group_seq", "attempt", "consumer", "incarnation", "seq",
    "dispatched_at", "ended_at", "outcome", "writer", "ordinal",
)  # fmt: skip
NUMBERS: Final = ("epoch", "group_seq", "turn", "ordinal")
#: A group for windows. Sorting compares numbers many times faster than names that begin alike.
_OF_GROUP: Final = ("group_hash", *GROUP)
#: What a verdict is made of.
SCREENED: Final = (
    *_OF_GROUP, *NUMBERS, "place", "inbound", "incarnation", "outcome", "began", "ended", "began_turn",
    "dispatched_at", "ended_at", "hands_over", "over", "is_shared",
)  # fmt: skip
#: What `violations` needs, and no more: these rows are written once more, and are many where a hot group is
#: looked at.
CLOSER: Final = (*_OF_GROUP, "inbound", "place", "turn", "began", "ended", "began_turn", *EVIDENCE)
#: Names a hand-over within its group. If several are witnesses alike, the one with the largest name is shown.
WHICH: Final = ("epoch", "group_seq", "attempt", "turn", "ordinal", "seq")
#: What the rules ask for: rows are sorted several times, so they are narrow, and evidence is looked up later.
_ASKED: Final = (
    *_OF_GROUP, "inbound", "place", *NUMBERS, "attempt", "incarnation", "outcome", "began", "ended",
    "began_turn",
)  # fmt: skip
_SO_FAR: Final = (Window.unboundedPreceding, Window.currentRow)
_QUEUE: Final = "queue_number"
#: By lane, all inbound queues of its hand-overs; of several ones none knows more than the others.
Queues = Mapping[str, Sequence[str | None]]
#: Of a lane with more queues rows are sorted by queue, too.
QUEUES_MAX: Final = 8


def judged(hand_overs: DataFrame) -> DataFrame:
    """Those that order is promised for. Number 0 under an epoch is that of a lane that does not group."""
    is_ungrouped = (F.col("group_seq") == 0) & (F.col("epoch") > 0)
    kept = hand_overs.where(F.col("group").isNotNull() & ~F.coalesce(is_ungrouped, F.lit(False)))
    place = F.when(F.col("inbound").isNotNull(), F.struct("arrival_epoch", "arrival"))
    return kept.withColumns({"place": place, "group_hash": F.xxhash64(*GROUP)})


def _has_numbers() -> Column:
    return F.coalesce(F.col("group_seq") > 0, F.lit(False)) & F.col("inbound").isNotNull()


def _by_numbers() -> list[Column]:
    return [F.col(name) for name in NUMBERS]


def screened(found: DataFrame, ranges: Ranges, *kept: str, queues: Queues | None = None) -> DataFrame:
    """Each hand-over of `judged`, without the evidence, and with the facts from its group's rows before it:
    `is_remarkable`, `is_linked`; `is_over`: it has ended, and so have all before it; `is_repeated`: its
    message was settled before; `is_headless`: it is the first of its epoch, and its number is not 1.

    `is_remarkable` may be told of more rows than break a rule. A row that stands for several (`audit_state`)
    says the same to those behind it as these would. Where groups are cut, rows that were judged together have
    the same RANGE."""
    is_taken = F.col("outcome") == Event.TAKEN_BACK
    settled_place = F.when(F.col("outcome") == Event.SETTLED, F.col("place"))
    facts = (
        Leading(F.struct("ended", "incarnation"), (), ("ended", "incarnation")),
        Leading(F.struct(*NUMBERS), (), (*NUMBERS, "began", "incarnation", "over")),
        Leading(F.when(F.col("outcome") == OPEN, True), (), ("outcome",)),
        Leading(stayed(), ("inbound",), ("outcome", "place")),
        Leading(settled_place, ("inbound",), ("outcome", "place")),
        Leading(F.when(is_taken, F.col("place")), ("inbound", "incarnation"), ("outcome", "place")),
    )
    found = found.select(*SCREENED, *kept)
    found = ranges.cut(found, _OF_GROUP, _by_numbers(), leading(_OF_GROUP, *facts))
    group = within_range(found, _OF_GROUP)
    by_group = Window.partitionBy(*group).orderBy(*NUMBERS)
    before = by_group.rowsBetween(*BEFORE)
    longest = F.max(F.struct("ended", "incarnation")).over(before)
    lagged = {
        name: F.lag(name).over(by_group) for name in ("epoch", "group_seq", "began", "incarnation", "over")
    }
    is_over = ~F.max(F.col("outcome") == OPEN).over(by_group.rowsBetween(*_SO_FAR))
    latest = _LatestOfQueue(group, queues)
    # To the same incarnation, or to one whose bit is the same.
    bit = F.expr("shiftleft(1L, cast(pmod(xxhash64(incarnation), 64) as int))")
    had_before = F.bit_or(F.when(is_taken, bit)).over(before).bitwiseAND(bit) != 0
    steps_back = (latest(stayed()) > F.col("place")) | (
        had_before & (latest(F.when(is_taken, F.col("place"))) > F.col("place"))
    )
    settled = latest(settled_place)
    begins = F.coalesce(lagged["epoch"] != F.col("epoch"), F.lit(True))
    overlaps = (longest["incarnation"] != F.col("incarnation")) & (longest["ended"] > F.col("began"))
    remarkable = overlaps | steps_back | (lagged["began"] > F.col("began"))
    linked = (lagged["epoch"] == F.col("epoch")) & (F.col("group_seq") <= lagged["group_seq"] + 1)
    marked = latest.numbered(found).withColumns({
        "is_remarkable": F.coalesce(remarkable, F.lit(False)) | ~_has_numbers(),
        "is_linked": F.coalesce(linked, F.lit(False)),
        "is_missing": F.coalesce(
            (lagged["epoch"] == F.col("epoch")) & (F.col("group_seq") > lagged["group_seq"] + 1), F.lit(False)
        ),
        "is_repeated": F.coalesce(settled == F.col("place"), F.lit(False)),
        "is_headless": begins & F.coalesce(F.col("group_seq") > 1, F.lit(False)),
        "former_began": lagged["began"],
        "is_early": F.col("hands_over") & (lagged["incarnation"] != F.col("incarnation"))
        & ~F.coalesce(lagged["over"] <= F.col("began"), F.lit(False)),
        "is_over": is_over,
    })  # fmt: skip
    return originals(marked).drop(_QUEUE)


class _LatestOfQueue:
    """The largest value of a group's rows before that are of the same queue. Where lanes have few queues,
    each one's is told apart in the order of the group: then nothing is sorted by queues."""

    def __init__(self, group: Sequence[str], queues: Queues | None) -> None:
        self._group = group
        most = max(map(len, queues.values()), default=0) if queues is not None else 0
        self._queues = queues if 0 < most <= QUEUES_MAX else None
        self._numbers = range(most)

    def numbered(self, rows: DataFrame) -> DataFrame:
        """With _QUEUE: which one of its lane's queues a row is of."""
        others = [
            ((F.col("lane") == lane) & F.col("inbound").eqNullSafe(F.lit(name)), nth)
            for lane, names in (self._queues or {}).items() for nth, name in enumerate(names) if nth
        ]  # fmt: skip
        first = F.lit(0)
        if others:
            found = F.when(*others[0])
            for each in others[1:]:
                found = found.when(*each)
            first = found.otherwise(first)
        return rows.withColumn(_QUEUE, first)

    def __call__(self, value: Column) -> Column:
        if self._queues is None:
            of_queue = Window.partitionBy(*self._group, "inbound").orderBy(*NUMBERS).rowsBetween(*BEFORE)
            return F.max(value).over(of_queue)
        before = Window.partitionBy(*self._group).orderBy(*NUMBERS).rowsBetween(*BEFORE)
        found = F.lit(None)
        for nth in self._numbers:
            is_this = F.col(_QUEUE) == nth
            found = F.when(is_this, F.max(F.when(is_this, value)).over(before)).otherwise(found)
        return found


def stayed() -> Column:
    """A hand-over's place if it counts for those behind it. A message that was taken back is handed over
    again after each move, which is no step back, except to the same incarnation."""
    return F.when(F.col("outcome") != Event.TAKEN_BACK, F.col("place"))


def violations(
    spark: SparkSession, found: DataFrame, leaderships: Iterable[RecordedLeadership], ranges: Ranges
) -> DataFrame:
    """One row for each hand-over of `judged` that broke a rule, and which rule: `order` or `overlap`. Of
    `found` it needs the columns of CLOSER.

    Columns: lane, group, inbound, rule, then EVIDENCE of the hand-over, and of its witness with `other_`.
    """
    asked = found.select(*_ASKED, *MESSAGE[2:], F.struct(*WHICH).alias("which"))
    order = _order_violations(asked.where(_has_numbers()), ranges)
    overlap = _not_permitted(spark, _overlaps(asked, ranges), leaderships)
    told = [
        broken.select(*_OF_GROUP, F.lit(rule).alias("rule"), "which", "witness")
        for rule, broken in (("order", order), ("overlap", overlap))
    ]
    return _with_evidence(told[0].unionByName(told[1]), found)


def no_violations(found: DataFrame) -> DataFrame:
    """The table of `violations` with no row: Spark takes long to find out by its rules that there is none."""
    other = [F.col(name).alias(f"other_{name}") for name in EVIDENCE]
    return found.select(*GROUP, "inbound", F.lit("order").alias("rule"), *EVIDENCE, *other).limit(0)


def _with_evidence(told: DataFrame, found: DataFrame) -> DataFrame:
    """What was found of the two hand-overs that each row of `told` names."""
    which, evidence = F.struct(*WHICH), F.struct(*EVIDENCE)
    own = found.select(*_OF_GROUP, which.alias("which"), "inbound", evidence.alias("own"))
    other = found.select(*_OF_GROUP, which.alias("witness"), evidence.alias("other"))
    both = told.join(own, [*_OF_GROUP, "which"]).join(other, [*_OF_GROUP, "witness"])
    return both.select(
        *GROUP, "inbound", "rule",
        *(F.col(f"own.{name}").alias(name) for name in EVIDENCE),
        *(F.col(f"other.{name}").alias(f"other_{name}") for name in EVIDENCE),
    )  # fmt: skip


def _order_violations(found: DataFrame, ranges: Ranges) -> DataFrame:
    """Hand-overs that came after a later message of their group and queue.

    All messages of one incarnation are taken back at one moment, so none of its own earlier hand-overs was
    taken back in time. For hand-overs of other incarnations without an end this is known only if the same
    leader tells of them, and no gap may hide the end. That an operator did not release a message is known
    only if the end of its hand-over before is known. A message that failed and was released goes again like
    one that is taken back: messages that came back may go behind it, messages that go for the first time may
    not."""
    message = Window.partitionBy(*MESSAGE).orderBy("attempt", *NUMBERS)
    all_of_it = message.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    former = F.lag("outcome").over(message)
    has_failed = F.col("outcome") == Event.FAILED
    failed = F.min(F.when(has_failed, F.col("ended"))).over(all_of_it)
    numbered = found.withColumns({
        "may_be_released": (F.col("attempt") > 1) & F.coalesce(former == OPEN, F.lit(True)),
        # What an operator released after it had failed, and its hand-over before.
        "was_released": F.coalesce(failed <= F.col("began"), F.lit(False)),
        "is_released": has_failed & (F.max("began").over(all_of_it) >= F.col("ended")),
    })  # fmt: skip
    here = F.struct(F.col("place"), F.col("which"))
    counts = ~F.col("is_released")
    is_final = counts & ~F.col("outcome").isin(Event.TAKEN_BACK, OPEN)
    is_held = counts & (F.col("outcome") == OPEN) & (micros("ended.time") == END_OF_TIME_US)
    told = ("outcome", "is_released", "place", "which")
    latest = Leading(F.when(is_final, here), ("inbound",), told)
    held = Leading(F.when(is_held, here), ("inbound", "began_turn"), (*told, "ended"))
    own = Leading(F.when(counts, here), ("inbound", "incarnation"), told)
    released = Leading(F.when(F.col("is_released"), here), ("inbound",), told)
    carry = leading(_OF_GROUP, latest, held, own, released)
    found = ranges.cut(numbered, _OF_GROUP, _by_numbers(), carry, alike=found)
    group = within_range(found, _OF_GROUP)

    def leads(fact: Leading) -> Column:
        rows = Window.partitionBy(*group, *fact.by).orderBy(*NUMBERS)
        return F.max(fact.value).over(rows.rowsBetween(*BEFORE))

    behind = F.greatest(
        leads(latest), leads(held), leads(own), F.when(F.col("attempt") == 1, leads(released))
    )
    wrong = without_copies(found.withColumn("latest", behind)).where(
        (F.col("latest.place") > F.col("place")) & ~F.col("was_released") & ~F.col("may_be_released")
    )
    return wrong.withColumn("witness", F.col("latest.which"))


def _overlaps(found: DataFrame, ranges: Ranges) -> DataFrame:
    """Hand-overs that began while another incarnation had messages of the group.

    The witness is, of the hand-overs of others that began before, the one that ended last.
    """
    order = ("began", *NUMBERS)
    places = [F.col("began.turn"), micros("began.time"), *_by_numbers()]
    found = ranges.cut(found, _OF_GROUP, places, _with_rivals_before)
    group = within_range(found, _OF_GROUP)
    by_group = Window.partitionBy(*group).orderBy(*order)
    marked = _with_rivals(found, group, order)
    marked = marked.withColumn("former_second", F.lag("second").over(by_group))
    is_own = F.col("former.incarnation") == F.col("incarnation")
    marked = marked.withColumn("rival", F.when(is_own, F.col("former_second")).otherwise(F.col("former")))
    is_over = (F.col("rival.ended") > F.col("began")) & (F.col("rival.incarnation") != F.col("incarnation"))
    found = without_copies(marked).where(is_over & (F.col("ended") > F.col("began")))
    return found.withColumn("witness", F.col("rival.which"))


def _best() -> Column:
    return F.struct("ended", "incarnation", "which", "began")


def _with_rivals(rows: DataFrame, group: Sequence[str], order: Sequence[str]) -> DataFrame:
    """Of the rows so far `best`, the one that ended last, and `second`, the best of other incarnations than
    its own; `former`: the best of the rows before.

    Rows are cut into stretches over which the same incarnation's ends last: the best of all others is that of
    the stretch before, or within this one."""
    by_group = Window.partitionBy(*group).orderBy(*order)
    marked = rows.withColumn("best", F.max(_best()).over(by_group.rowsBetween(*_SO_FAR)))
    marked = marked.withColumn("former", F.lag("best").over(by_group))
    turns = F.coalesce(F.col("former.incarnation") != F.col("best.incarnation"), F.lit(False))
    marked = marked.withColumn("stretch", F.sum(turns.cast("int")).over(by_group.rowsBetween(*_SO_FAR)))
    inside = Window.partitionBy(*group, "stretch").orderBy(*order).rowsBetween(*_SO_FAR)
    others = F.max(F.when(F.col("incarnation") != F.col("best.incarnation"), _best())).over(inside)
    # At a stretch's first row `former` is the best of all rows before it, and another incarnation's.
    earlier = F.first(F.col("former")).over(inside)
    return marked.withColumn("second", F.greatest(others, earlier))


def _with_rivals_before(rows: DataFrame) -> DataFrame:
    """Copies for each range: what is best and second of all rows before it. Their numbers are null, so they
    come first."""
    of_one = rows.groupBy(*_OF_GROUP, RANGE, "incarnation").agg(F.max(_best()).alias("last"))
    marked = _with_rivals(of_one.select(*_OF_GROUP, RANGE, "last.*"), _OF_GROUP, (RANGE, "incarnation"))
    at_end = marked.groupBy(*_OF_GROUP, RANGE).agg(
        F.max_by(F.array("best", "second"), F.col("incarnation")).alias("rivals")
    )
    before = F.lag("rivals").over(Window.partitionBy(*_OF_GROUP).orderBy(RANGE))
    each = at_end.withColumn("rivals", before).select(*_OF_GROUP, RANGE, F.explode("rivals").alias("rival"))
    return each.where("rival is not null").select(*_OF_GROUP, RANGE, "rival.*")


def _not_permitted(
    spark: SparkSession, overlaps: DataFrame, leaderships: Iterable[RecordedLeadership]
) -> DataFrame:
    """Without those that a move with `pause: none` permits, begun between the two."""
    moves = [
        (each.lane, each.turn, fact.time_us)
        for each in leaderships for fact in each.facts
        if fact.event == GROUPS_MOVING and fact.detail.get("pause") == "none"
    ]  # fmt: skip
    # Records that were told again of a killed leadership happened in the turn behind it.
    loose = [
        (each.lane, turn) for each in leaderships if each.options.get("rebalance_pause") == "none"
        for turn in (each.turn, _next_turn(each, leaderships) - 1)
    ]  # fmt: skip
    if loose:
        table = pa.table({
            "lane": [lane for lane, _ in loose],
            "loose_turn": pa.array([turn for _, turn in loose], pa.int64()),
        })  # fmt: skip
        allowed = spark.createDataFrame(table)
        same = (overlaps["lane"] == allowed["lane"]) & (F.col("began.turn") == F.col("loose_turn"))
        overlaps = overlaps.join(few(allowed), same, "left_anti")
    if moves:
        table = pa.table({
            "move_lane": [lane for lane, _, _ in moves],
            "move_turn": pa.array([turn for _, turn, _ in moves], pa.int64()),
            "move_us": pa.array([time_us for _, _, time_us in moves], pa.int64()),
        })  # fmt: skip
        moved = spark.createDataFrame(table).withColumn(
            "moved", instant(F.col("move_turn"), F.timestamp_micros("move_us"))
        )
        between = (
            (F.col("lane") == F.col("move_lane")) & (F.col("rival.began") <= F.col("moved"))
            & (F.col("moved") <= F.col("began"))
        )  # fmt: skip
        overlaps = overlaps.join(few(moved), between, "left_anti")
    return overlaps


def _next_turn(leadership: RecordedLeadership, leaderships: Iterable[RecordedLeadership]) -> int:
    later = [
        each.turn for each in leaderships if each.lane == leadership.lane and each.turn > leadership.turn
    ]
    return min(later, default=leadership.turn + 2)


def hidden(spark: SparkSession, holes: DataFrame, gaps: list[Gap]) -> DataFrame | None:
    """Groups of which a hand-over may be hidden, and by what: lane, group, because.

    A hand-over without a record has numbers between two that do not follow each other, or behind the last
    ones, and was handed over between these: then a gap must have been there. None: there is no gap."""
    real = [gap for gap in gaps if gap.kind not in BOUNDARIES]
    if not real:
        return None
    found = holes.join(
        few(gap_spans(spark, real)),
        (F.col("lane") == F.col("gap_lane"))
        & (F.col("hole_since").isNull() | (F.col("hole_since") < F.col("until")))
        & (F.col("hole_until").isNull() | (F.col("hole_until") > F.col("since"))),
    )
    return found.select(*GROUP, F.col("gap_text").alias("because"))


def with_doubts(
    spark: SparkSession,
    marked: DataFrame,
    leaderships: Iterable[RecordedLeadership],
    *,
    is_part: bool = False,
) -> DataFrame:
    """With `because`: why something may be missing, as the hand-over itself says; null: it does not.
    `is_part`: earlier hand-overs were left out, so epochs may begin with any number."""
    known = sorted(leaderships, key=lambda each: each.turn)
    last = {each.lane: each.turn for each in known}
    # Whose first record is there: it has given all its epochs' first numbers since.
    whole: dict[str, list[int]] = {lane: [] for lane in last}
    for each in known:
        if each.started is not None and not is_part:
            whole[each.lane].append(each.lane_epoch)
    lanes = spark.createDataFrame(pa.table({
        "lane": pa.array(list(last), pa.string()), "last_turn": pa.array(list(last.values()), pa.int64()),
        "whole": pa.array(list(whole.values()), pa.list_(pa.int64())),
    }))  # fmt: skip
    is_of_whole = F.array_contains("whole", F.shiftright("epoch", COUNTER_SHIFT))
    goes_back = (F.col("dispatched_at") > F.col("ended_at")) & (F.col("began_turn") == F.col("turn"))
    why = (
        F.when(F.col("is_missing"), F.lit("a number of an epoch is missing"))
        .when(F.col("is_headless") & is_of_whole, F.lit("the first number of an epoch is missing"))
        .when(F.col("is_repeated"), F.lit("a message was settled, and then handed over again"))
        .when(
            ~_has_numbers(),
            F.lit("only a consumer or the journal knew of a hand-over: its place is not known"),
        )
        .when(goes_back, F.lit("its leader's clock went back"))
        .when(F.col("is_shared"), F.lit("several read the queue of its consumer"))
        .when(F.col("is_early"), F.lit("its consumer before may still have had something of it in its queue"))
        .when(
            F.col("hands_over") & (F.col("outcome") == Event.SETTLED) & (F.col("turn") > F.col("began_turn")),
            F.lit("a later leader sent it again: it may stand behind later ones in its consumer's queue"),
        )
        .when(
            (F.col("outcome") == OPEN) & (F.col("turn") < F.col("last_turn")),
            F.lit("a hand-over has no end, and a later leader does not know of it"),
        )
    )
    return marked.join(few(lanes), "lane", "left").withColumn("because", why).drop("last_turn", "whole")


def verdicts(groups: DataFrame, violations: DataFrame, hidden: DataFrame | None) -> DataFrame:
    """One row for each group, with its verdict; `groups` has the doubts about their own hand-overs."""
    broken = violations.groupBy(*GROUP).agg(
        F.sum((F.col("rule") == "order").cast("int")).alias("disorders"),
        F.sum((F.col("rule") == "overlap").cast("int")).alias("overlaps"),
    )
    if hidden is not None:
        told = hidden.groupBy(*GROUP).agg(F.min("because").alias("told"))
        because = F.least("because", "told").alias("because")
        others = [name for name in groups.columns if name != "because"]
        groups = groups.join(told, [*GROUP], "left").select(*others, because)
    is_broken = F.col("disorders").isNotNull()
    verdict = F.when(is_broken, VIOLATED).when(F.col("because").isNotNull(), UNKNOWN).otherwise(KEPT)
    return (
        groups.join(broken, [*GROUP], "left")
        .withColumn("verdict", verdict)
        .fillna(0, ["disorders", "overlaps"])
        .select(
            *GROUP, "hand_overs", "incarnations", "open", "first_at", "last_at", "disorders", "overlaps",
            "because", "verdict",
        )
    )  # fmt: skip
