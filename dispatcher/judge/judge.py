"""Everything in a record that the guarantees don't allow (docs/semantics.md, section 3).

A `life` is one process of a consumer, or one incarnation of it. A message that a life had in hand when it
ended may be handed over again, with a higher attempt (G-4); everything else must have happened once, in order
and without overlap.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

from dispatcher.judge.record import UNGROUPED, HandlingRecord, MessageKey

#: (group, queue, producer), and which of its connections → a number.
TakenUpTo = dict[tuple[tuple[str, str, str], int], int]


class BreachKind(StrEnum):
    """What must not happen."""

    LOST = "lost"
    DOUBLED = "doubled"
    OUT_OF_ORDER = "out of order"
    OVERLAP = "overlap"
    EPOCH_BACK = "epoch going back"
    EPOCH_SHARED = "epoch shared"
    NUMBERS_GAP = "gap in the group's numbers"
    OWNER_CHANGED = "owner changed"


class Breach(NamedTuple):
    """One thing that happened although it must not."""

    kind: BreachKind
    what: str  # for people: which handlings of which message
    late: MessageKey | None = None  # the message that came too late, of one that is out of order

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


class Forgotten(NamedTuple):
    """Redis lost its data and no leader wrote it back. The dispatcher no longer knows of settles in that time
    whose original was not acked for good, nor of the owners of groups without messages in hand."""

    since: float
    until: float
    again_from: float  # messages settled in that time may be handed over again from here on


class Move(NamedTuple):
    """An operator moved groups."""

    since: float
    until: float
    groups: frozenset[str] | None  # None: whichever


class Release(NamedTuple):
    """An operator released what a group had stopped at (D-9)."""

    group: str  # or its bucket
    since: float
    until: float


class Story(NamedTuple):
    """What happened besides the record: which messages were surely published, and which life was ended
    when."""

    published: frozenset[MessageKey]
    killed_at: dict[str, float]  # life → just before it was killed, or when its connection was lost for good
    left_at: dict[str, float]  # life → when it was asked to stop
    keeps_owner: bool  # `exclusive`
    forgotten: tuple[Forgotten, ...] = ()
    moves: tuple[Move, ...] = ()
    #: The broker may have these more than once, equal in every byte: a crash may repeat them (G-4).
    repeated: frozenset[MessageKey] = frozenset()
    #: (life, until when it had a connection): what it ended by then it may have settled, welcomed or not.
    connected_until: tuple[tuple[str, float], ...] = ()
    #: How many buckets the groups share; the rules for groups apply to these (O-15).
    buckets: int | None = None
    #: How long a group must have had no messages before its owner may lose it (O-3, O-14).
    keeps_owner_idle_s: float | None = None
    #: For so long after its confirm a message may be on its way to the dispatcher: another node may have it.
    delivery_s: float = 0.0
    #: How long a group must have had nothing out before a consumer with free capacity takes it over (O-34);
    #: None: never.
    steal_after_s: float | None = None
    #: How many originals of an inbound queue a dispatcher holds at most; it doesn't know the rest yet.
    look_ahead: int | None = None
    #: When RabbitMQ confirmed each message to its producer.
    confirmed_at: Mapping[MessageKey, float] = {}
    #: Given up because it died with too many consumers (M-2).
    poison: frozenset[MessageKey] = frozenset()
    #: Removed by an operator: the caller has accounted for them.
    gone: frozenset[MessageKey] = frozenset()
    releases: tuple[Release, ...] = ()
    #: These may come behind later messages: Redis has forgotten that they were to come first (P-9).
    behind: frozenset[MessageKey] = frozenset()
    #: Whether a message's producer says that the group ends with it.
    closes: Callable[[MessageKey], bool] = lambda _: False


def violations(record: list[HandlingRecord], story: Story) -> list[Breach]:
    """Everything that is wrong. `record` is sorted by start."""
    counting = that_count(record, story)
    record = [handling for handling in record if not is_ghost(handling, story)]
    found = lost(counting, story) + doubled(record, story)
    found += passed_over(_by_group(counting), story)
    taken_up_to = taken_up_to_of(story)
    begun_at = first_begun(record)
    for handlings in _by_group(record).values():
        found += out_of_order(handlings, story, taken_up_to)
        found += overlapping_itself(handlings, story)
        found += epochs_going_back(handlings)
        found += numbers_with_gaps(handlings)
    for handlings in _by_group(record, story.buckets).values():
        found += overlapping(handlings, story)
        if story.keeps_owner:
            found += owners_changed(handlings, story, begun_at)
    return found


def that_count(record: list[HandlingRecord], story: Story) -> list[HandlingRecord]:
    """Without what a consumer still began that had lost its connection, and could not settle."""
    until = dict(story.connected_until)
    return [h for h in record if not is_ghost(h, story) or _may_be_settled(h, until)]


def _by_group(record: list[HandlingRecord], buckets: int | None = None) -> dict[str, list[HandlingRecord]]:
    """With `buckets` by what owners own: a group, or the bucket that it falls into."""
    by_group: dict[str, list[HandlingRecord]] = defaultdict(list)
    for handling in record:
        if handling.message.group != UNGROUPED:
            by_group[owned_as(handling.message.group, buckets)].append(handling)
    return by_group


def owned_as(group: str, buckets: int | None) -> str:
    """What operators call it."""
    return group if buckets is None else f"bucket:{crc32(group.encode()) % buckets}/{buckets}"


def lost(record: list[HandlingRecord], story: Story) -> list[Breach]:
    """G-3: every message that the broker took was handled to its end by the last consumer that got it."""
    last: dict[MessageKey, HandlingRecord] = {}
    for handling in record:
        last[handling.message] = handling
    given_up = story.poison | story.gone
    missing = story.published - last.keys() - given_up
    return [Breach(BreachKind.LOST, f"{say_number(message)} was never handled") for message in missing] + [
        Breach(BreachKind.LOST, f"{say(h)} began, did not end, and no consumer got it again")
        for h in last.values()
        if h.end is None and h.message not in given_up
    ]


def doubled(record: list[HandlingRecord], story: Story) -> list[Breach]:
    """G-4: only a message that a life had in hand, unconfirmed, when it ended comes again, with a higher
    attempt."""
    by_message: dict[MessageKey, list[HandlingRecord]] = defaultdict(list)
    for handling in record:
        by_message[handling.message].append(handling)
    found: list[Breach] = []
    for message, handlings in by_message.items():
        if message in story.repeated:
            continue
        for first, second in pairwise(handlings):
            if _forgotten_by(first, second.start, story):
                continue
            if second.attempt <= first.attempt and not _attempt_forgotten(first, second.start, story):
                found.append(
                    Breach(BreachKind.DOUBLED, f"{say(first)}, then {say(second)}: the attempt does not rise")
                )
            if not is_over_by(first, second.start, story) and not _released(first, second.start, story):
                found.append(
                    Breach(
                        BreachKind.DOUBLED,
                        f"{say(first)}, then {say(second)}: the first one's consumer lives",
                    )
                )
            if first.confirmed:
                found.append(
                    Breach(BreachKind.DOUBLED, f"{say(first)} was settled for good, then {say(second)}")
                )
    return found


def passed_over(by_group: dict[str, list[HandlingRecord]], story: Story) -> list[Breach]:
    """G-1: nothing begins for the first time before everything that its producer sent before it."""
    lines: dict[tuple[str, str, str], list[MessageKey]] = defaultdict(list)
    for message in story.published - story.poison - story.gone - story.behind:
        lines[line_of(message)].append(message)
    found: list[Breach] = []
    for handlings in by_group.values():
        begun: set[MessageKey] = set()
        first: dict[tuple[str, str, str], int] = defaultdict(int)
        for handling in handlings:
            line = line_of(handling.message)
            earlier = lines.get(line, [])
            if not first[line]:
                earlier.sort(key=place_of)
            while first[line] < len(earlier) and earlier[first[line]] in begun:
                first[line] += 1
            begun.add(handling.message)
            if first[line] < len(earlier) and place_of(earlier[first[line]]) < place_of(handling.message):
                late = earlier[first[line]]
                what = f"{say(handling)} before {say_number(late)} was begun"
                found.append(Breach(BreachKind.OUT_OF_ORDER, what, late))
    return found


def out_of_order(handlings: Iterable[HandlingRecord], story: Story, taken_up_to: TakenUpTo) -> list[Breach]:
    """G-1 for one group: a message that is handed over again comes before every later one. Later means:
    RabbitMQ got it later in the same inbound queue."""
    found: list[Breach] = []
    lines: dict[tuple[str, str, str], list[HandlingRecord]] = defaultdict(list)
    former: dict[MessageKey, HandlingRecord] = {}
    for handling in handlings:
        before = former.get(handling.message)
        former[handling.message] = handling
        if handling.message in story.repeated or handling.message in story.behind:
            continue
        if before is not None and _forgotten_by(before, handling.start, story):
            continue  # later messages may be in hand already
        line = lines[line_of(handling.message)]
        # It goes back to where the unsettled messages of an ended life begin.
        for place in reversed(range(len(line))):
            other = line[place]
            if precedes(other.message, handling.message, taken_up_to):
                break  # and so do the other ones before it
            if precedes(handling.message, other.message, taken_up_to):
                del line[place]
                void = is_over_by(other, handling.start, story) and not other.confirmed
                if not void and not _forgotten_by(other, handling.start, story):
                    what = f"{say(handling)} after {say(other)}"
                    found.append(Breach(BreachKind.OUT_OF_ORDER, what, handling.message))
        line.append(handling)
    return found


def overlapping(handlings: list[HandlingRecord], story: Story) -> list[Breach]:
    """G-2 for one group: no life begins while another one may be at work on it."""
    found: list[Breach] = []
    at_work: dict[str, HandlingRecord] = {}  # by life, the one that ends last
    for handling in handlings:
        for life, other in list(at_work.items()):
            if life == handling.life:
                continue
            if (
                is_over_by(other, handling.start, story)
                or (other.end or handling.start + 1) <= handling.start
            ):
                del at_work[life]
            else:
                found.append(Breach(BreachKind.OVERLAP, f"{say(handling)} while {say(other)}"))
        mine = at_work.get(handling.life)
        if mine is None or mine.end is not None:
            at_work[handling.life] = handling
    return found


def overlapping_itself(handlings: list[HandlingRecord], story: Story) -> list[Breach]:
    """G-2 for one group: no life begins the next message before the end of the one before."""
    found: list[Breach] = []
    last: dict[str, HandlingRecord] = {}
    for handling in handlings:
        before = last.get(handling.life)
        last[handling.life] = handling
        if before is None or is_over_by(before, handling.start, story):
            continue
        if before.end is None or before.end > handling.start:
            found.append(Breach(BreachKind.OVERLAP, f"{say(handling)} while {say(before)}"))
    return found


def epochs_going_back(handlings: list[HandlingRecord]) -> list[Breach]:
    """For one group: epochs never fall, and one epoch has one consumer (O-3)."""
    found: list[Breach] = []
    for first, second in pairwise(handlings):
        if second.epoch < first.epoch:
            found.append(Breach(BreachKind.EPOCH_BACK, f"{say(first)}, then {say(second)}"))
        if second.epoch == first.epoch and second.life != first.life:
            found.append(Breach(BreachKind.EPOCH_SHARED, f"{say(first)} and {say(second)}"))
    return found


def numbers_with_gaps(handlings: list[HandlingRecord]) -> list[Breach]:
    """For one group: within an epoch a consumer begins 1, 2, 3 …."""
    found: list[Breach] = []
    last: dict[tuple[str, int], HandlingRecord] = {}
    for handling in handlings:
        key = (handling.life, handling.epoch)
        before = last.get(key)
        if handling.group_seq != (before.group_seq + 1 if before is not None else 1):
            found.append(Breach(BreachKind.NUMBERS_GAP, f"{before and say(before)}, then {say(handling)}"))
        last[key] = handling
    return found


def first_begun(record: Iterable[HandlingRecord]) -> dict[MessageKey, float]:
    """When each message was begun first."""
    begun_at: dict[MessageKey, float] = {}
    for handling in record:
        begun_at.setdefault(handling.message, handling.start)
    return begun_at


def owners_changed(
    handlings: list[HandlingRecord], story: Story, begun_at: Mapping[MessageKey, float]
) -> list[Breach]:
    """G-6 for one group: only the end of its owner's life moves it, an operator, the end of the group, or a
    consumer with free capacity for which it has waited."""
    found: list[Breach] = []
    closed = False  # one of these messages closes the group, or a group of the bucket
    for first, second in pairwise(handlings):
        closed = story.closes(first.message) or (closed and story.buckets is not None)
        if first.life == second.life:
            continue
        if (
            not closed
            and not _gone_by(first.life, second.start, story)
            and not any(first.start <= gap.until <= second.start for gap in story.forgotten)
            and not any(_moved(move, first, second, story) for move in story.moves)
            and not _may_be_taken_over(first, second, story, begun_at)
            and not _was_idle(first, second, story, begun_at)
        ):
            found.append(Breach(BreachKind.OWNER_CHANGED, f"{say(first)}, then {say(second)}"))
        closed = False
    return found


def _moved(move: Move, first: HandlingRecord, second: HandlingRecord, story: Story) -> bool:
    meant = move.groups is None or owned_as(first.message.group, story.buckets) in move.groups
    return meant and move.since <= second.start and first.start <= move.until


def _may_be_taken_over(
    first: HandlingRecord, second: HandlingRecord, story: Story, begun_at: Mapping[MessageKey, float]
) -> bool:
    """Nothing of the group was out for as long as it has to wait for room at its owner; or a look-ahead may
    have been full: then it has to wait for nothing."""
    if story.steal_after_s is None or first.end is None:
        return False
    if first.end + story.steal_after_s <= second.start:
        return True
    queues = {message.queue for message in story.confirmed_at}
    return any(_may_be_full(queue, first.end, second.start, story, begun_at) for queue in queues)


def _was_idle(
    first: HandlingRecord, second: HandlingRecord, story: Story, begun_at: Mapping[MessageKey, float]
) -> bool:
    """Nothing of the group was there for as long as an owner keeps it. RabbitMQ has a message a little before
    its confirm says so, and a dispatcher only when less than its look-ahead is before it in the queue."""
    if story.keeps_owner_idle_s is None or first.end is None:
        return False
    idle_until, published_at = first.end + story.keeps_owner_idle_s, story.confirmed_at.get(second.message)
    if published_at is None or idle_until <= published_at + story.delivery_s:
        return True
    if second.start < idle_until:
        return False
    return _may_be_full(second.message.queue, first.end, published_at, story, begun_at)


def _may_be_full(
    queue: str, since: float, until: float, story: Story, begun_at: Mapping[MessageKey, float]
) -> bool:
    """Whether enough messages of an inbound queue waited in that time. Half of the look-ahead counts: what
    its group has stopped at, or is settled and not acked, takes room as well."""
    if story.look_ahead is None:
        return False
    waited = sum(
        at <= until and begun_at.get(message, math.inf) > since
        for message, at in story.confirmed_at.items()
        if message.queue == queue
    )
    return waited >= story.look_ahead / 2


def is_ghost(handling: HandlingRecord, story: Story) -> bool:
    """Begun by a consumer that did not know yet that its life had ended: no sidecar can stop it (G-2)."""
    over_at = story.killed_at.get(handling.life)
    return over_at is not None and over_at < handling.start and not handling.confirmed


def _may_be_settled(handling: HandlingRecord, connected_until: dict[str, float]) -> bool:
    """It ended after a lost connection, and there was another one before its consumer was taken back."""
    return handling.end is not None and handling.end <= connected_until.get(handling.life, handling.start)


def _gone_by(life: str, at: float, story: Story) -> bool:
    ended_at = min(
        (end for end in (story.killed_at.get(life), story.left_at.get(life)) if end is not None), default=None
    )
    return ended_at is not None and ended_at <= at


def is_over_by(handling: HandlingRecord, at: float, story: Story) -> bool:
    """Whether this handling no longer counts at that time: its life had ended, or had lost the message."""
    killed_at = story.killed_at.get(handling.life)
    if killed_at is not None and killed_at <= at:
        return True
    return handling.cancelled is not None and handling.cancelled <= at


def _released(handling: HandlingRecord, at: float, story: Story) -> bool:
    """It failed, and an operator let its group try it again."""
    if not handling.failed or handling.end is None:
        return False
    key = owned_as(handling.message.group, story.buckets)
    return any(r.group == key and r.since <= at and handling.end <= r.until for r in story.releases)


def _forgotten_by(handling: HandlingRecord, at: float, story: Story) -> bool:
    """It ended at a time of which nothing may be remembered."""
    return handling.end is not None and any(
        gap.since <= handling.end <= gap.until and gap.again_from <= at for gap in story.forgotten
    )


def _attempt_forgotten(handling: HandlingRecord, at: float, story: Story) -> bool:
    """It was open when everything was forgotten, and its consumer was not there to say so."""
    return not handling.confirmed and any(handling.start <= gap.until <= at for gap in story.forgotten)


def line_of(message: MessageKey) -> tuple[str, str, str]:
    return message.group, message.queue, message.producer


def place_of(message: MessageKey) -> tuple[int, int]:
    return message.publish, message.number


def taken_up_to_of(story: Story) -> TakenUpTo:
    """The last confirmed message of each producer's connection, per group and queue: RabbitMQ had got it and
    everything before it when the next connection began."""
    last: TakenUpTo = {}
    for message in story.published:
        key = (line_of(message), message.publish)
        last[key] = max(last.get(key, 0), message.number)
    return last


def precedes(first: MessageKey, second: MessageKey, taken_up_to: TakenUpTo) -> bool:
    """Whether RabbitMQ surely got `first` before `second`, of one line.

    RabbitMQ may still be reading the last messages of a lost connection when the producer's next connection
    is up: nothing is known of the order between these and the messages of the next connection.
    """
    if first.publish == second.publish:
        return first.number < second.number
    taken = taken_up_to.get((line_of(first), first.publish), 0)
    return first.publish < second.publish and first.number <= taken


def say_number(m: MessageKey) -> str:
    return f"{m.group}#{m.producer}.{m.publish}.{m.number} of {m.queue}"


def say(h: HandlingRecord) -> str:
    end = f"{h.end:.3f}" if h.end is not None else "no end"
    return (
        f"[{say_number(h.message)} at {h.life} seq={h.seq} group_seq={h.group_seq} "
        f"epoch={h.epoch} attempt={h.attempt} {h.start:.3f}–{end}"
        f"{f' cancelled {h.cancelled:.3f}' if h.cancelled else ''}{' confirmed' if h.confirmed else ''}]"
    )
