"""What the lane remembers: messages, groups, consumers, and the states that each may be in.

Theory of operation. A *message* is one original that the broker has delivered and that is not acked yet. It
waits in its group's *backlog* until the delivery pass hands it to a consumer.

A *group* is FREE until the delivery pass gives it to a consumer. Under a policy that lets its owner go on it
is then OWNED; under plain `sequenced` it is BATCHED: one batch is out, and the rest is blocked for every
consumer. DRAINING means that the owner gets no more, and that the group changes its owner when the last
message in flight is settled: it was moved, reset or closed, or its consumer is leaving. After a fail-over a
group with open entries is RECOVERING until each of them has met its original again.

A *consumer* is one incarnation: one life of a consuming process, from its join to its end.

Slots that a capability owns (`flags`, `demand`, `relocation`) are opaque here: its module has their types.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import Enum
from typing import Any, Final, Protocol

from dispatcher.core.bounds import ORIGINAL_BYTES
from dispatcher.core.ordered import OrderedSet
from dispatcher.core.queue_ids import QueueId, is_parking
from dispatcher.core.tables import IncarnationRow
from dispatcher.errors import InvalidTransition
from dispatcher.wire.protocol import Begun, Join

# -- messages --

#: In the place of how much a lane had settled when a message's first consumer died.
NO_DEATH: Final = -1


class MessageState(Enum):
    """Where an original stands. Exactly one holds at any time."""

    WAITING = "held"  # here, waiting for its turn
    IN_FLIGHT = "in flight"  # dispatched to `consumer`, not settled
    RELOCATING = "moving"  # on its way to a parking queue, waiting for the broker's confirm
    ENDING = "ending"  # on its way to the dead queue, waiting for the broker's confirm
    TRANSFERRING = "leaving"  # on its way to where an operator sends it, waiting for the broker's confirm
    SETTLED = "settled"  # ended; its inbound ack may still be on the way


#: Looking up a member of an Enum takes 0.1 µs in Python 3.11: these are for decisions about each message.
WAITING: Final = MessageState.WAITING
IN_FLIGHT: Final = MessageState.IN_FLIGHT
SETTLED: Final = MessageState.SETTLED

MESSAGE_TRANSITIONS: Final[dict[MessageState, frozenset[MessageState]]] = {
    MessageState.WAITING: frozenset(
        {MessageState.IN_FLIGHT, MessageState.RELOCATING, MessageState.ENDING, MessageState.TRANSFERRING,
         MessageState.SETTLED}
    ),
    # To itself: another consumer has it than the journal says.
    MessageState.IN_FLIGHT: frozenset(
        {MessageState.WAITING, MessageState.IN_FLIGHT, MessageState.ENDING, MessageState.SETTLED}
    ),
    MessageState.RELOCATING: frozenset({MessageState.ENDING, MessageState.SETTLED}),
    MessageState.ENDING: frozenset(
        {MessageState.TRANSFERRING, MessageState.WAITING, MessageState.SETTLED}
    ),
    MessageState.TRANSFERRING: frozenset({MessageState.WAITING, MessageState.SETTLED}),
    MessageState.SETTLED: frozenset(),
}  # fmt: skip


class Original:
    """One original of an inbound queue, and what became of its latest copy.

    Slots and a plain constructor: one is made per message, so its cost is part of the hot path.

    `arrival` is (lane epoch, delivery tag) of the first delivery that the journal knows; a matched
    redelivery keeps it. `tag` is the delivery tag on the present connection. `content` is opaque to the
    core: what the edge publishes.
    """

    __slots__ = (
        "__dict__",  # made only for a message that has one of the rare ones
        "arrival", "attempt", "closing", "consumer", "content", "cost", "deadline_at_ms", "dispatched_at_ms",
        "epoch", "fingerprint", "first", "footprint", "group", "group_id", "group_seq", "inbound", "kind",
        "queue", "received_at_ms", "redelivered", "refusal", "seq", "size", "state", "tag", "waits_since_ms",
    )  # fmt: skip

    # Rare: most messages never have another value of these, so the class has it for them.
    is_marker = False  # of an operation (operations/events.py): never work
    origin_arrival: tuple[int, int] | None = None  # in the first queue that it was in, if that is not this
    term = 0  # of a parked copy: in which round of publishes it was made
    relocation: Any = None  # its way to a parking queue: parking/queue.py has the type
    message_id: bytes | None = None  # 16 bytes made of it, where the lane drops repeated messages
    number: int | None = None  # its producer's, in its group, where the lane checks that
    rank_override: tuple[int, ...] | None = None  # where it ranks, if others that came before it wait for it
    deliveries = 0  # how often its queue has delivered it before, if that counts: a quorum queue
    unbegun = 0  # hand-overs to consumers that died and had not begun it, as far as this leader knows
    calls = 0  # of its handler, by the consumer that has failed it
    overdue = False  # its consumer has had it for longer than the lane's ack_timeout
    #: How much the lane's consumers had settled when the first consumer died with it; 0 if that was before
    #: this leader's start, which settles count from; NO_DEATH: it has only failed so far.
    settles_at_death = 0

    def __init__(
        self,
        inbound: QueueId,
        tag: int,
        arrival: tuple[int, int],
        fingerprint: bytes,
        group_id: bytes | None,
        content: Any,
        size: int,
        received_at_ms: int,
        redelivered: bool = False,
        closing: bool = False,
        deadline_at_ms: int | None = None,
        refusal: str | None = None,
        cost: int = 1,
    ) -> None:
        self.inbound = inbound  # index of the inbound queue in whose share and order it stands
        self.queue = inbound  # index of the queue that its original is in
        self.tag = tag  # 0: see is_here
        self.arrival = arrival
        self.fingerprint = fingerprint  # 16 bytes
        self.group_id = group_id  # None: ungrouped
        self.content = content
        self.size = size  # bytes of its names, properties and body
        self.footprint = size + ORIGINAL_BYTES  # bytes of the memory that it takes while its original is here
        self.received_at_ms = received_at_ms
        self.waits_since_ms = received_at_ms  # a parked one: received before it was parked
        self.redelivered = redelivered  # the broker's flag: says that it *may* have been delivered before
        self.closing = closing  # its negative sequence closes the group once it is settled
        self.deadline_at_ms = deadline_at_ms  # ms since 1970, None: never expires
        self.refusal = refusal  # why the edge could not understand it; goes to the dead queue
        self.cost = cost  # in DWRR units
        self.kind: bytes | None = None  # its `type`, where the work of each is measured or recorded
        self.state = WAITING
        self.attempt = 0  # hand-overs so far
        self.group: Group | None = None
        self.consumer: Consumer | None = None
        self.seq = self.epoch = self.group_seq = 0
        self.first = False  # first of its group for its consumer since the group was assigned to it
        self.dispatched_at_ms = 0

    @property
    def deaths(self) -> int:
        """Consumers that may have died of it, while it waits: every hand-over ends in a settle or a death."""
        return self.attempt - self.unbegun

    def become(self, state: MessageState) -> None:
        """Move to `state`. Raises InvalidTransition for a move that the table doesn't have."""
        if state not in MESSAGE_TRANSITIONS[self.state]:
            raise InvalidTransition(f"{self} can't go from {self.state.value} to {state.value}")
        self.state = state

    @property
    def is_here(self) -> bool:
        """Whether this leadership has received the original: after a take-over it has not, until RabbitMQ
        delivers it again."""
        return self.tag > 0

    @property
    def waits_here(self) -> bool:
        """It waits in a backlog or among those without a group, and is not on its way to another queue."""
        return self.state is WAITING and self.relocation is None

    @property
    def is_parked(self) -> bool:
        """Its original is in a parking queue."""
        return is_parking(self.queue)

    @property
    def first_arrival(self) -> tuple[int, int]:
        """Its arrival in the first queue that it was in: its place among the messages of its group that came
        through the same inbound queue."""
        return self.origin_arrival or self.arrival

    @property
    def rank(self) -> tuple[int, ...]:
        """Its place in its backlog: its `first_arrival`, if its producer's numbers say nothing else."""
        return self.rank_override or self.origin_arrival or self.arrival

    def __repr__(self) -> str:
        return f"<Original {self.group_id!r} {self.arrival} {self.state.value} seq={self.seq}>"


# -- groups --

#: The window of a group that only its consumer's prefetch limits.
NEVER_FULL: Final = 1 << 31


class GroupState(Enum):
    FREE = "free"
    OWNED = "owned"
    BATCHED = "batched"
    DRAINING = "draining"
    RECOVERING = "recovering"


#: As above: for decisions about each message.
FREE: Final = GroupState.FREE
OWNED: Final = GroupState.OWNED

GROUP_TRANSITIONS: Final[dict[GroupState, frozenset[GroupState]]] = {
    GroupState.FREE: frozenset({GroupState.OWNED, GroupState.BATCHED, GroupState.RECOVERING}),
    GroupState.OWNED: frozenset({GroupState.FREE, GroupState.DRAINING, GroupState.RECOVERING}),
    GroupState.BATCHED: frozenset({GroupState.FREE, GroupState.DRAINING, GroupState.RECOVERING}),
    GroupState.DRAINING: frozenset({GroupState.FREE, GroupState.OWNED, GroupState.RECOVERING}),
    GroupState.RECOVERING: frozenset(
        {GroupState.FREE, GroupState.OWNED, GroupState.BATCHED, GroupState.DRAINING}
    ),
}


class BacklogList(Protocol):
    """A source of the delivery pass that serves backlogs, in turn."""

    backlogs: OrderedDict[Backlog, None]


class Backlog:
    """The messages of one group that wait, from one inbound queue, in that queue's order.

    `listed_in` is the one list of the delivery pass that holds this backlog, None while it may not be served.
    Messages that ended meanwhile (expired) stay inside until they reach the front.
    """

    __slots__ = ("group", "inbound", "messages", "listed_in")

    def __init__(self, group: Group, inbound: QueueId) -> None:
        self.group = group
        self.inbound = inbound
        self.messages: deque[Original] = deque()
        self.listed_in: BacklogList | None = None

    def head(self) -> Original | None:
        """The first message that still waits; drops those in front of it that have ended."""
        messages = self.messages
        while messages:
            message = messages[0]
            if message.state is WAITING:
                return message
            messages.popleft()
        return None

    def leave(self) -> None:
        """It is served from nowhere."""
        if self.listed_in is not None:
            del self.listed_in.backlogs[self]
            self.listed_in = None


class Group:
    """One message group of the lane. `in_flight` counts its unsettled copies at all consumers."""

    __slots__ = (
        "backlogs", "demand", "epoch", "flags", "fresh", "id", "in_flight", "last_seq", "owner", "pinned_to",
        "route", "state", "target", "unresolved", "window",
    )  # fmt: skip

    def __init__(self, group_id: bytes, state: GroupState = GroupState.FREE) -> None:
        self.id = group_id
        self.state = state  # `become` alone changes it
        self.owner: Consumer | None = None
        self.epoch = 0  # of the present assignment; 0: the next dispatch begins a new epoch
        self.last_seq = 0  # group-seq of the latest message of this epoch
        self.fresh = False  # assigned, and nothing dispatched since
        self.in_flight = 0
        self.window = NEVER_FULL  # how many may be in flight: that of the lane, or what `GroupWindows` sets
        self.unresolved = 0  # open entries whose original has not come back yet
        self.target: Consumer | None = None  # DRAINING: its next owner; None: the next consumer that takes it
        self.backlogs: dict[QueueId, Backlog] | None = None  # by inbound index; None: nothing waits
        self.route: tuple[QueueId, ...] = ()  # parking queues that its messages pass, by rising index
        self.flags: Any = None  # what operators have set: operators/flags.py has the type
        self.pinned_to: Consumer | None = None  # the only consumer that may become its owner
        self.demand: Any = None  # who waits for its parked messages: parking/queue.py has the type

    def become(self, state: GroupState) -> None:
        """Move to `state`. Raises InvalidTransition for a move that the table doesn't have."""
        if state not in GROUP_TRANSITIONS[self.state]:
            raise InvalidTransition(f"group {self.id!r} can't go from {self.state.value} to {state.value}")
        self.state = state

    @property
    def pin(self) -> str | None:
        """The id of the consumer that alone may get it, as operators have said; None: any may."""
        pin: str | None = self.flags.pin if self.flags is not None else None
        return pin

    @property
    def taker(self) -> Consumer | None:
        """Who gets its next message; None: the consumer with the least to do."""
        return self.owner if self.owner is not None else self.pinned_to

    @property
    def is_unused(self) -> bool:
        """Nothing is left of it: once it is free too, it is no group any more."""
        return self.backlogs is None and not (self.route or self.in_flight or self.flags)

    def backlog(self, inbound: QueueId) -> Backlog:
        """The backlog for that inbound queue, made when it is first needed."""
        if self.backlogs is None:
            self.backlogs = {}
        backlog = self.backlogs.get(inbound)
        if backlog is None:
            backlog = self.backlogs[inbound] = Backlog(self, inbound)
        return backlog

    def forget_if_empty(self, backlog: Backlog) -> None:
        """Give back the memory of a backlog that ran empty. A backlog that is kept has a message in front."""
        if backlog.head() is None and self.backlogs is not None:
            backlog.leave()
            self.backlogs.pop(backlog.inbound, None)
            if not self.backlogs:
                self.backlogs = None

    def hand_out(self, message: Original) -> None:
        """The message goes to a consumer, with the next number under the epoch of the present assignment."""
        self.last_seq += 1
        self.in_flight += 1
        message.group_seq, message.epoch = self.last_seq, self.epoch

    def number(self, message: Original) -> None:
        """Give it that number, and do not count it: it is not in flight."""
        self.last_seq += 1
        message.group_seq, message.epoch = self.last_seq, self.epoch

    def renumbered(self, message: Original) -> None:
        """The owner gets this message once more, with these numbers: the next ones follow them."""
        self.last_seq = message.group_seq

    def goes_on(self, latest: Original) -> None:
        """This is out under a former leader, and was handed over last: the next ones follow it."""
        self.epoch, self.last_seq = latest.epoch, latest.group_seq

    def went_out(self, message: Original) -> None:
        """One more message is in flight."""
        self.in_flight += 1

    def came_back(self, message: Original) -> None:
        """One message is in flight no more."""
        self.in_flight -= 1

    def __repr__(self) -> str:
        return f"<Group {self.id!r} {self.state.value} in_flight={self.in_flight}>"


# -- consumers --


class ConsumerState(Enum):
    EXPECTED = "expected"  # known from the journal; our ping to its queue has not been answered yet
    LIVE = "live"
    FROZEN = "frozen"  # heartbeats are missing: keeps what it has, gets no new group
    REFUSING = "refusing"  # its queue is full: gets nothing until it has joined again and there is room
    LEAVING = "leaving"  # said so: gets nothing more, settles what it holds
    LOST = "lost"  # its queue is gone; it may come back until `lost_until_ms`
    MARKED = "marked"  # our marker is on its way through the control queue behind its last settles
    REVOKED = "taken"  # ended


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

    def head(self) -> Original | None:
        """The next message, or None: its consumer may not receive now, or nothing waits."""
        consumer = self.consumer  # as `may_receive` says, without a call: this is asked for each message
        if not self.backlogs or consumer.credit <= 0 or not consumer.receives or consumer.alone_with:
            return None
        backlog = next(iter(self.backlogs))
        messages = backlog.messages
        if messages and messages[0].state is WAITING:  # nearly always: not worth a call
            return messages[0]
        return backlog.head()


class Consumer:
    """One incarnation. `in_flight` is by seq, in the order of dispatch; credit = prefetch − in flight."""

    __slots__ = (
        "state", "alone_with", "begun", "broken", "bundle", "credit", "depth", "drained", "evicted_by",
        "groups", "id", "in_flight", "incoming", "last_heard_ms", "last_sent_ms", "lost_until_ms", "n",
        "next_seq", "number", "overdue", "ping_unanswered", "pool_level", "prefetch", "queue", "readers",
        "receives", "refusals",
        "refused_n", "refused_until_ms", "reported", "resumes_as", "sent_again", "settled_at_ms", "sources",
        "stored", "reclaiming", "user", "uuid", "waiting", "waiting_heard_ms", "waiting_told", "work_ms",
    )  # fmt: skip

    def __init__(
        self, number: int, row: IncarnationRow, *, inbounds: int, first_seq: int, now_ms: int
    ) -> None:
        self.number = number
        self.id = row.consumer
        self.uuid = row.uuid
        self.user = row.user
        self.bundle = row.bundle
        self.queue = row.queue
        self.n = row.n
        self.prefetch = row.prefetch
        self.credit = row.prefetch
        self.state = ConsumerState.EXPECTED  # `become` alone changes it
        #: Whether its state is one of RECEIVING: asked for every message, where hashing an enum shows.
        self.receives = False
        self.in_flight: dict[int, Original] = {}
        self.next_seq = first_seq
        self.groups: OrderedSet[Group] = OrderedSet()
        self.incoming: OrderedSet[Group] = OrderedSet()  # groups that go to it once they are drained
        self.sources = [ConsumerSource(self) for _ in range(inbounds)]
        #: What it becomes when it is found again: LIVE, or LEAVING if it had said so.
        self.resumes_as = ConsumerState.LEAVING if row.state == "leaving" else ConsumerState.LIVE
        self.reported: frozenset[int] | None = None  # seqs in hand, as its latest join after our start said
        self.sent_again: set[int] = set()  # seqs that its latest join did not name
        self.broken: OrderedSet[Group] = OrderedSet()  # groups of which a copy is gone that it has not seen
        self.waiting: Join | None = None  # another incarnation of this id that asked to join,
        self.waiting_heard_ms = 0  # when it last did, and
        self.waiting_told = ""  # which one the log has named
        self.alone_with: Original | None = None  # a suspect that it has, or for which it is kept free
        #: What its latest settle and its latest heartbeat say of its handlers.
        self.begun: dict[type, Begun] = {}
        self.evicted_by: Any = None  # who ends it: membership/evictions.py has the type
        self.drained = False  # an operator has said that it gets nothing more
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
        #: Of a hand-over consumer: how many messages wait in its queue, as far as is known. None: it speaks
        #: the protocol.
        self.depth: int | None = None
        self.readers = 0  # of that queue, when it was last looked at
        self.stored = 0  # copies that came into that queue
        self.reclaiming = False  # the queue is being read back

    def become(self, state: ConsumerState) -> None:
        """Move to `state`. Raises InvalidTransition for a move that the table doesn't have."""
        if state not in CONSUMER_TRANSITIONS[self.state]:
            raise InvalidTransition(f"consumer {self.id} can't go from {self.state.value} to {state.value}")
        self.state = state
        self.receives = state in RECEIVING

    @property
    def is_open(self) -> bool:
        """It is live and may be given something new."""
        return self.state is ConsumerState.LIVE and not self.drained

    @property
    def may_receive(self) -> bool:
        """It may get the next message of a group that it owns, or that is pinned to it, now."""
        return self.credit > 0 and self.receives and self.alone_with is None

    @property
    def takes_new(self) -> bool:
        """It may get a group without an owner, or an ungrouped message, now."""
        return self.may_receive and self.is_open

    @property
    def stays(self) -> bool:
        """It may own groups: it has not ended, and has not said that it leaves."""
        gets_nothing = self.state is ConsumerState.REVOKED or self.evicted_by is not None or self.drained
        return not gets_nothing and self.resumes_as is ConsumerState.LIVE

    def __repr__(self) -> str:
        return f"<Consumer {self.id} #{self.number} {self.state.value} in_flight={len(self.in_flight)}>"
