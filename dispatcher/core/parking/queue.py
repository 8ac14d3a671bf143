"""One parking queue: the groups whose messages go there, the messages on their way, and those that were read
from it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from itertools import islice
from typing import Final

from dispatcher.core.eligibility import Eligibility
from dispatcher.core.holds import Facts, Hold, HoldKind
from dispatcher.core.model import FREE, OWNED, Consumer, Group, MessageState, Original
from dispatcher.core.ordered import OrderedSet
from dispatcher.core.placement import Pool
from dispatcher.core.queue_ids import QueueId
from dispatcher.errors import InvalidTransition
from dispatcher.wire.origin import Arrival

#: Enough for many stuck consumers at once; each costs the broker a queue and us a channel. At this bound
#: nothing more is parked, so a full inbound queue stands still, and says so.
PARKING_QUEUES_MAX: Final = 64
#: So long the name of a deleted parking queue is not given again. RabbitMQ (seen with 3.10.8) can leave a
#: quorum queue without a leader for ever that is declared within some 5 s of the deletion of one with its
#: name, while a node is away: its members end at their own pace.
REST_MS: Final = 30_000
#: A repeated copy lies at most as far behind the first as relocations can be unconfirmed, or redeliveries
#: late.
SETTLED_KEPT_MAX: Final = 40_000
#: Under which key a queue counts a message: that of its group, or None if no order binds it.
MemberOf = Callable[[Original], bytes | None]


class ParkingQueueState(Enum):
    OPENING = "opening"  # its name is committed, the broker may not have it yet
    OPEN = "open"
    DELETING = "deleting"


_S = ParkingQueueState
PARKING_QUEUE_TRANSITIONS: Final[dict[ParkingQueueState, frozenset[ParkingQueueState]]] = {
    _S.OPENING: frozenset({_S.OPEN}),
    _S.OPEN: frozenset({_S.DELETING}),
    _S.DELETING: frozenset({_S.OPEN}),  # something was in it
}


class Relocation:
    """The way of one message into a parking queue."""

    __slots__ = ("copy", "repeated", "resumed", "target", "term")

    def __init__(self, target: ParkingQueue, copy: bytes) -> None:
        self.target = target
        self.copy = copy  # its fingerprint there
        self.term = 0  # under which it was published last; 0: not by us
        self.repeated = False  # it may have been published before that, which is void
        self.resumed = False  # a former leader has begun it

    @property
    def is_published(self) -> bool:
        """A copy of it is on its way to its parking queue."""
        return self.copy in self.target.published

    @property
    def term_needed(self) -> int:
        """Copies from before that term are void."""
        if self.repeated and self.term:
            return self.term
        return self.target.void_before if self.resumed else 0


class ParkingQueue:
    """See the module. In a parking queue a fingerprint names one original."""

    __slots__ = (
        "additions", "asked_at", "blocked_since_ms", "confirmed", "consumer", "demand", "early",
        "end_at", "end_seen", "expected", "here", "idle_since_ms", "index", "left", "members", "name",
        "originals", "problem", "published", "read_through", "reading", "redelivering", "refused_until_ms",
        "relocating", "settled", "since_ms", "_member_of", "_state", "term", "terms_needed", "unknown",
        "unwanted_since_ms", "void_before", "waiting",
    )  # fmt: skip

    def __init__(self, index: QueueId, name: str, consumer: str, now_ms: int, member_of: MemberOf) -> None:
        self.index = index
        self._member_of = member_of
        self.name = name
        self.consumer = consumer  # id of the one whose groups are parked here; empty: of no certain one
        self._state = ParkingQueueState.OPENING
        self.problem: str | None = None  # why RabbitMQ can't open it
        #: Groups whose messages go here, with how many originals of theirs are in it (None: of no group).
        self.members: dict[bytes | None, int] = {}
        #: Of these, when the oldest original that was not read was first received; where that is known.
        self.since_ms: dict[bytes | None, int] = {}
        self.originals = 0  # in it, as far as is known, those that were read from it included
        #: Who could take messages that are read from it, and of which member groups: the owners of these;
        #: None: any consumer with free capacity.
        self.demand: dict[Consumer | None, OrderedSet[Group]] = {}
        self.waiting: deque[Original] = deque()  # to be relocated here, in order
        self.relocating: dict[bytes, Original] = {}  # whose relocation is open, by their fingerprint here
        self.published: OrderedDict[bytes, Original] = OrderedDict()  # those that were published, in order
        self.confirmed: set[bytes] = set()  # of those
        self.additions = 0  # changes whenever something may have come into it
        self.term = 0
        self.terms_needed: dict[bytes, int] = {}  # copies from before are void
        self.void_before = 0  # in relocations that were open, copies from before that term never count
        self.refused_until_ms = 0
        self.here: dict[bytes, Original] = {}  # read and not settled
        self.settled: OrderedDict[bytes, Arrival] = OrderedDict()
        self.expected: dict[bytes, Original] = {}  # known from the journal and not read yet
        self.early: deque[Original] = deque()  # read, and waiting for what decides about it
        self.reading = False
        self.redelivering = False  # consumers may tell of messages that are at its head
        self.unknown = False  # messages of any group may be in it
        self.asked_at = -1  # `stored` when it was last read
        self.end_at = -1  # `stored` at the last read that found nothing more
        self.end_seen = False  # the last read found nothing more
        self.left = 0  # messages in it that are not here, as the last read said
        self.read_through = 0  # operations that wait for its messages
        self.idle_since_ms = now_ms
        self.unwanted_since_ms = now_ms
        self.blocked_since_ms: int | None = None

    @property
    def state(self) -> ParkingQueueState:
        return self._state

    def become(self, state: ParkingQueueState) -> None:
        """Move to `state`. Raises InvalidTransition for a move that the table doesn't have."""
        if state not in PARKING_QUEUE_TRANSITIONS[self._state]:
            raise InvalidTransition(f"{self.name} can't go from {self._state.value} to {state.value}")
        self._state = state

    @property
    def is_open(self) -> bool:
        return self._state is ParkingQueueState.OPEN

    @property
    def at_end(self) -> bool:
        """Nothing is in it that was not read."""
        return self.end_at == self.additions and not self.published

    @property
    def is_read(self) -> bool:
        """All that was in it is here, and the journal waits for nothing of it."""
        if not self.at_end or self.reading:
            return False
        return not (self.relocating or self.early or self.expected or self.redelivering)

    def is_wanted(self, pool: Pool) -> bool:
        """Whether a consumer could take its messages, or an operation waits for them."""
        if self.read_through:
            return True
        if (self.unknown or None in self.members) and pool:
            return True
        for consumer in self.demand:
            if consumer is None:
                if pool:
                    return True
            elif consumer.credit > 0 and consumer.receives:
                return True
        return False

    def room(self, pool: Pool) -> int:
        """How many messages those who want some could take, at least roughly."""
        takers = [c for c in self.demand if c is not None and c.receives]
        if pool:
            takers.append(pool.least_loaded())
        return sum(max(0, consumer.credit) for consumer in takers)

    def holds_undecided(self, revoked: dict[Original, None]) -> bool:
        """Something read from it waits or moves on, and the journal does not know that it is here."""
        waiting, relocating = MessageState.WAITING, MessageState.RELOCATING
        return any(
            message.state is relocating or (message.state is waiting and message not in revoked)
            for message in self.here.values()
        )

    @property
    def is_usable(self) -> bool:
        """Messages may be parked there, now or when it is open."""
        return not self.unknown and self.problem is None and self.state is not ParkingQueueState.DELETING

    def is_empty(self) -> bool:
        """Nothing of it, or on its way to it, is known."""
        return not (
            self.members or self.waiting or self.relocating or self.here or self.expected or self.early
        )

    def store(self, message: Original) -> None:
        """An original has come to its end."""
        self.originals += 1
        key = self._member_of(message)
        if not self.members.get(key):
            self.since_ms[key] = message.waits_since_ms
        self.members[key] = self.members.get(key, 0) + 1

    def take(self, message: Original) -> None:
        """An original was read: the messages of its group that are still in the queue are newer."""
        self.here[message.fingerprint] = message
        self.terms_needed.pop(message.fingerprint, None)
        key = self._member_of(message)
        if key in self.members:
            self.since_ms[key] = message.waits_since_ms

    def leave(self, message: Original) -> None:
        """A message that was read goes back to its place."""
        del self.here[message.fingerprint]
        key = self._member_of(message)
        if key in self.members:
            self.since_ms[key] = min(self.since_ms.get(key, message.waits_since_ms), message.waits_since_ms)

    def settle(self, message: Original) -> None:
        """An original that was read from it has ended."""
        key = self._member_of(message)
        self.here.pop(message.fingerprint, None)
        self.remember(message.fingerprint, message.arrival)
        self.originals -= self.originals > 0
        if self.members.get(key, 0) > 0:
            self.members[key] -= 1

    def remember(self, fingerprint: bytes, arrival: Arrival) -> None:
        """A repeated copy of it is no message."""
        self.settled[fingerprint] = arrival
        self.settled.move_to_end(fingerprint)
        if len(self.settled) > SETTLED_KEPT_MAX:
            self.settled.popitem(last=False)

    def expect(self, message: Original) -> None:
        """The journal says that its original is here."""
        self.expected[message.fingerprint] = message

    def forget(self, message: Original) -> None:
        """It is not expected any more."""
        self.expected.pop(message.fingerprint, None)

    def settled_early(self, message: Original) -> None:
        """An expected one is settled: its original counts no more."""
        self.forget(message)
        self.settle(message)

    def begin_read(self) -> None:
        self.reading = True
        self.asked_at = self.additions

    def __repr__(self) -> str:
        return f"<ParkingQueue {self.name} {self._state.value} members={len(self.members)}>"


#: A parking queue, and the consumer that waits for its messages; None: any one with free capacity.
Demand = tuple[ParkingQueue, Consumer | None]


class ParkingQueues(dict[QueueId, ParkingQueue]):
    """A lane's parking queues by index, in the order of these."""

    def __init__(self, eligibility: Eligibility, member_of: MemberOf) -> None:
        super().__init__()
        self._eligibility = eligibility
        self.member_of = member_of
        #: Part of every group's route: queues that were found after Redis had forgotten the routes.
        self.default_route: tuple[QueueId, ...] = ()
        #: When queues were deleted whose names are not given again for `rest_ms`: ms since 1970.
        self.resting: dict[QueueId, int] = {}
        self.rest_ms = REST_MS
        self.unconfirmed = 0  # relocations published and not answered
        self.unconfirmed_bytes = 0
        self.at_bound = False  # the last attempt to park found no free parking queue
        self.passing: dict[bytes, None] = {}  # groups that may be known for nothing but the default route

    def add(self, index: QueueId, name: str, consumer: str, now_ms: int) -> ParkingQueue:
        """Make one, in its place."""
        queue = ParkingQueue(index, name, consumer, now_ms, self.member_of)
        others = {index: other for index, other in self.items() if index > queue.index}
        for index in others:
            del self[index]
        self[queue.index] = queue
        self.update(others)
        return queue

    def rest(self, index: QueueId, now_ms: int) -> None:
        """Give its name to no other queue for a while."""
        self.resting[index] = now_ms

    def rests(self, index: QueueId, now_ms: int) -> bool:
        """Whether a queue of that name was deleted a short while ago."""
        deleted_ms = self.resting.get(index)
        return deleted_ms is not None and now_ms < deleted_ms + self.rest_ms

    def is_reading(self) -> bool:
        """Something may come that could be dispatched."""
        return any(queue.reading for queue in self.values())

    def route(self, group: Group) -> tuple[QueueId, ...]:
        """The parking queues that its messages pass."""
        if not self.default_route:
            return group.route
        return tuple(sorted({*group.route, *self.default_route}))

    def parked(self, group: Group) -> int:
        """How many originals of the group, or bucket, are in parking queues, as far as is known."""
        return sum(self[index].members.get(group.id, 0) for index in self.route(group))

    def hold_on(self, group: Group) -> Hold | None:
        """Why the parked messages of the group do not go: they have to be read first. None: none is
        parked."""
        if any(self[index].problem for index in self.route(group)):
            return Hold(HoldKind.PARKING_UNAVAILABLE, partial(self._unavailable_to, group))
        return Hold(HoldKind.PARKED, partial(self._parked_in, group)) if self.parked(group) else None

    def _unavailable_to(self, group: Group) -> Facts:
        queues = (self[index] for index in self.route(group))
        return {"queues": {queue.name: queue.problem for queue in queues if queue.problem}}

    def _parked_in(self, group: Group) -> Facts:
        return {"queues": [self[index].name for index in self.route(group)]}

    def since_ms(self, group: Group) -> int | None:
        """When the oldest parked message of the group was received; None: none is parked, or not known."""
        queues = (self[index] for index in self.route(group))
        known = (q.since_ms.get(group.id) for q in queues if q.members.get(group.id))
        return min((since_ms for since_ms in known if since_ms is not None), default=None)

    def groups_for(self, owner: Consumer, count: int) -> dict[Group, None]:
        """Groups with parked messages that wait for this consumer: so many at most of each queue."""
        found: dict[Group, None] = {}
        for queue in self.values():
            found |= dict.fromkeys(islice(queue.demand.get(owner, ()), count))
        if self.default_route:  # after a loss of Redis: no queue lists groups that are only on that route
            found |= owner.groups
        return found

    def is_wanted(self, group: Group) -> bool:
        """Whether parked messages of the group would be read if its consumer had room. Those on the default
        route are read for every group."""
        is_forgotten = not group.route and not group.flags and self.parked(group) > 0
        return group.demand is not None or is_forgotten

    def may_bring(self, group: Group) -> bool:
        """Whether messages of the group may be in its parking queues, or on their way there."""
        queues = (self[index] for index in self.route(group))
        return any(queue.waiting or not queue.is_read for queue in queues)

    def next_on_route(self, group: Group, queue: QueueId) -> ParkingQueue | None:
        """Where a message of the group in this queue has to go; None: nowhere, it may be dispatched."""
        for index in self.route(group):
            if index > queue:
                return self[index]
        return None

    def refresh_demand(self, group: Group) -> None:
        """Its route or state changed: another consumer may take its parked messages now."""
        before, group.demand = group.demand, None
        if before is not None:
            queue, consumer = before
            queue.demand[consumer].discard(group)
            if not queue.demand[consumer]:
                del queue.demand[consumer]
        if group.route and self._wants_messages(group):
            queue = self[group.route[-1]]
            queue.demand.setdefault(group.taker, OrderedSet()).add(group)
            group.demand = queue, group.taker

    def _wants_messages(self, group: Group) -> bool:
        """Whether messages of the group that are not here are of use: they could go, or operators have
        decided about one of them."""
        if group.in_flight >= group.window or group.state not in (OWNED, FREE):
            return False
        kind = self._eligibility.held_by(group, None)
        return kind is None or kind is HoldKind.DECIDED
