"""Consumers: the states of one incarnation, and the pool from which new groups get theirs."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from dispatcher.core.effects import IncarnationRow
from dispatcher.core.groups import Backlog, Group
from dispatcher.core.model import Message
from dispatcher.core.ordered import OrderedSet
from dispatcher.errors import InvalidTransition
from dispatcher.protocol import Join

if TYPE_CHECKING:
    from dispatcher.core.inbound import Inbound


class EvictedBy(Enum):
    """Who ends an incarnation that would go on."""

    OPERATOR = "operator"
    ACK_TIMEOUT = "ack_timeout"
    FORMER_LEADER = "a former dispatcher"  # for any reason
    HANDOVER = "handover"  # the lane has, or has no more, consumers that only read their queues


class ConsumerState(Enum):
    EXPECTED = "expected"  # known from the journal; our ping to its queue has not been answered yet
    LIVE = "live"
    FROZEN = "frozen"  # heartbeats are missing: keeps what it has, gets no new group
    REFUSING = "refusing"  # its queue is full: gets nothing until it has joined again and there is room
    LEAVING = "leaving"  # said so: gets nothing more, settles what it holds
    LOST = "lost"  # its queue is gone; it may come back until `lost_until_ms`
    MARKED = "marked"  # our marker is on its way through the control queue behind its last settles
    REVOKED = "taken"  # over


_S = ConsumerState
CONSUMER_TRANSITIONS: Final[dict[ConsumerState, frozenset[ConsumerState]]] = {
    _S.EXPECTED: frozenset({_S.LIVE, _S.REFUSING, _S.LEAVING, _S.LOST, _S.MARKED, _S.REVOKED}),
    _S.LIVE: frozenset({_S.FROZEN, _S.REFUSING, _S.LEAVING, _S.LOST, _S.MARKED, _S.REVOKED}),
    _S.FROZEN: frozenset({_S.LIVE, _S.REFUSING, _S.LEAVING, _S.LOST, _S.MARKED, _S.REVOKED}),
    _S.REFUSING: frozenset({_S.LIVE, _S.LEAVING, _S.LOST, _S.MARKED, _S.REVOKED}),
    _S.LEAVING: frozenset({_S.REFUSING, _S.LOST, _S.MARKED, _S.REVOKED}),
    _S.LOST: frozenset({_S.LIVE, _S.LEAVING, _S.MARKED, _S.REVOKED}),
    _S.MARKED: frozenset({_S.LIVE, _S.LEAVING, _S.REVOKED}),
    _S.REVOKED: frozenset(),
}
#: States in which its queue is thought to exist and gets copies.
REACHABLE: Final = frozenset({_S.EXPECTED, _S.LIVE, _S.FROZEN, _S.LEAVING})
#: States in which its queue is thought to exist.
PRESENT: Final = REACHABLE | {_S.REFUSING}
#: States in which it gets new messages of the groups that it owns.
RECEIVING: Final = frozenset({_S.LIVE, _S.FROZEN})


class ConsumerSource:
    """What one consumer could receive from one inbound queue: its groups with messages there, in turn."""

    __slots__ = ("backlogs", "consumer", "in_ring")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.backlogs: OrderedDict[Backlog, None] = OrderedDict()
        self.in_ring = False  # in its inbound queue's list of sources

    def head(self) -> Message | None:
        """The next message, or None: no credit, or nothing waits."""
        consumer = self.consumer
        if consumer.credit <= 0 or not consumer.receives or not self.backlogs:
            return None
        if consumer.alone_with is not None:
            return None
        return next(iter(self.backlogs)).head()


class Consumer:
    """One incarnation. `in_flight` is by seq, in the order of dispatch; credit = prefetch − in flight."""

    __slots__ = (
        "_state", "alone_with", "broken", "credit", "depth", "drained", "evicted_by", "groups", "id",
        "in_flight", "incoming", "last_heard_ms", "last_sent_ms", "lost_until_ms", "n", "next_seq", "number",
        "overdue", "ping_unanswered", "pool_level", "prefetch", "queue", "readers", "receives", "refusals",
        "refused_n", "refused_until_ms", "reported", "resumes_as", "sent_again", "settled_at_ms", "sources",
        "stored", "reclaiming", "uuid", "waiting", "work_ms",
    )  # fmt: skip

    def __init__(
        self, number: int, row: IncarnationRow, *, inbounds: int, first_seq: int, now_ms: int
    ) -> None:
        self.number = number
        self.id = row.consumer
        self.uuid = row.uuid
        self.queue = row.queue
        self.n = row.n
        self.prefetch = row.prefetch
        self.credit = row.prefetch
        self._state = ConsumerState.EXPECTED
        #: Whether its state is one of RECEIVING: asked for every message, where hashing an enum shows.
        self.receives = False
        self.in_flight: dict[int, Message] = {}
        self.next_seq = first_seq
        self.groups: OrderedSet[Group] = OrderedSet()
        self.incoming: OrderedSet[Group] = OrderedSet()  # groups that go to it once they are drained
        self.sources = [ConsumerSource(self) for _ in range(inbounds)]
        #: What it becomes when it is found again: LIVE, or LEAVING if it had said so.
        self.resumes_as = ConsumerState.LEAVING if row.state == "leaving" else ConsumerState.LIVE
        self.reported: frozenset[int] | None = None  # seqs in hand, as its latest join after our start said
        self.sent_again: set[int] = set()  # seqs that its latest join did not name
        self.broken: OrderedSet[Group] = OrderedSet()  # groups of which a copy is gone that it has not seen
        self.waiting: Join | None = None  # another incarnation of this id that asked to join
        self.alone_with: Message | None = None  # a suspect that it has, or for which it is kept free
        self.evicted_by = EvictedBy.FORMER_LEADER if row.state == "evicted" else None
        self.drained = False  # gets nothing more, by an operator's word
        self.overdue = 0  # messages that it has had for longer than the lane's ack_timeout
        self.last_heard_ms = now_ms
        self.last_sent_ms = now_ms
        self.ping_unanswered = False
        self.lost_until_ms = 0
        self.refused_until_ms = 0  # REFUSING: when it may get something, or is asked again to join
        self.refused_n = 0  # its latest join when its queue was found full
        self.refusals = 0  # since it settled something
        self.settled_at_ms = 0  # when it last said that it had done something …
        self.work_ms: float | None = None  # … and what a message takes it, where that is measured
        self.pool_level = -1  # -1: not in the pool
        #: Of a hand-over consumer: what waits in its queue, as far as is known. None: it speaks the protocol.
        self.depth: int | None = None
        self.readers = 0  # of that queue, when it was last looked at
        self.stored = 0  # copies that came into that queue
        self.reclaiming = False  # the queue is being read back

    @property
    def state(self) -> ConsumerState:
        return self._state

    def become(self, state: ConsumerState) -> None:
        """Move to `state`. Raises InvalidTransition for a move that the table doesn't have."""
        if state not in CONSUMER_TRANSITIONS[self._state]:
            raise InvalidTransition(f"consumer {self.id} can't go from {self._state.value} to {state.value}")
        self._state = state
        self.receives = state in RECEIVING

    @property
    def is_open(self) -> bool:
        """It is live and may be given something new."""
        return self._state is ConsumerState.LIVE and not self.drained

    @property
    def takes_new(self) -> bool:
        """It may get a group that nobody owns, or an ungrouped message, now."""
        return self.credit > 0 and self.alone_with is None and self.is_open

    @property
    def stays(self) -> bool:
        """It may own groups: it is not over and has not said that it leaves."""
        is_over = self._state is ConsumerState.REVOKED or self.evicted_by is not None or self.drained
        return not is_over and self.resumes_as is ConsumerState.LIVE

    def row(self) -> IncarnationRow:
        """What Redis keeps of it."""
        stored = "leaving" if self.resumes_as is ConsumerState.LEAVING else "live"
        if self.evicted_by is not None:
            stored = "evicted"
        if self._state is ConsumerState.REVOKED:
            stored = "taken"
        return IncarnationRow(self.id, self.uuid, self.queue, self.n, self.prefetch, stored)

    def __repr__(self) -> str:
        return f"<Consumer {self.id} #{self.number} {self._state.value} in_flight={len(self.in_flight)}>"


class Pool:
    """Consumers that can take something new: LIVE and with credit.

    Two orders over the same members. `least_loaded`: lowest level first (the policy says what a level
    counts: groups owned, or messages in flight), within a level the one that has been there longest.
    `next_in_turn`: plain rotation. Each operation is O(log levels), whatever the number of consumers.
    """

    def __init__(self, level_of: Callable[[Consumer], int]) -> None:
        self._level_of = level_of
        # Ordered dicts: in a plain one, finding the first key walks over all that were taken away before it.
        self._levels: dict[int, OrderedDict[Consumer, None]] = {}
        self._heap: list[int] = []  # every level that has members, and some that had; each once
        self._in_heap: set[int] = set()
        self._turn: OrderedDict[Consumer, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._turn)

    def __len__(self) -> int:
        return len(self._turn)

    def __contains__(self, consumer: object) -> bool:
        return consumer in self._turn

    def add(self, consumer: Consumer) -> None:
        if consumer.pool_level < 0:
            self._turn[consumer] = None
            self._enter(consumer, self._level_of(consumer))

    def discard(self, consumer: Consumer) -> None:
        if consumer.pool_level >= 0:
            del self._turn[consumer]
            self._leave(consumer)

    def given(self, consumer: Consumer) -> None:
        """It was given something: it goes behind the others in both orders."""
        if consumer.pool_level >= 0:
            self._turn.move_to_end(consumer)
            self._levels[consumer.pool_level].move_to_end(consumer)
            self.level_changed(consumer)

    def level_changed(self, consumer: Consumer) -> None:
        """What its level counts may be another number now."""
        if consumer.pool_level >= 0:
            level = self._level_of(consumer)
            if level != consumer.pool_level:
                self._leave(consumer)
                self._enter(consumer, level)

    def least_loaded(self) -> Consumer:
        heap, levels = self._heap, self._levels
        while heap[0] not in levels:
            self._in_heap.discard(heapq.heappop(heap))
        return next(iter(levels[heap[0]]))

    def next_in_turn(self) -> Consumer:
        return next(iter(self._turn))

    def _enter(self, consumer: Consumer, level: int) -> None:
        consumer.pool_level = level
        members = self._levels.get(level)
        if members is None:
            members = self._levels[level] = OrderedDict()
            if level not in self._in_heap:
                self._in_heap.add(level)
                heapq.heappush(self._heap, level)
        members[consumer] = None

    def _leave(self, consumer: Consumer) -> None:
        members = self._levels[consumer.pool_level]
        del members[consumer]
        if not members:
            del self._levels[consumer.pool_level]
        consumer.pool_level = -1


def enlist_source(inbound: Inbound, share: ConsumerSource) -> None:
    """Let the delivery pass look at this share again."""
    if not share.in_ring and share.backlogs:
        share.in_ring = True
        inbound.ready.append(share)
