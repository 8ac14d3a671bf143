"""What the lane remembers: messages, groups, consumers, and the states that each may be in.

Theory of operation. A *message* is one original that the broker has delivered and that is not acked yet. It
waits in its group's *backlog* until the delivery pass hands it to a consumer.

A *group* is FREE until the delivery pass gives it to a consumer. Under a policy that lets its owner go on it
is then OWNED; under plain `sequenced` it is BATCHED: one batch is out, and the rest is blocked for every
consumer (with `top_up` only a take-over does that to what is out). DRAINING means that the owner gets no
more, and that the group changes its owner when the last message in flight is settled: it was moved, reset or
closed, or its consumer is leaving. After a fail-over a group with open entries is RECOVERING until each of
them has met its original again.

A *consumer* is one incarnation: one life of a consuming process, from its join to its end. Its states are
in `consumer_life`: LIVE is the one that matters here.

What a capability remembers of a message, a group or a consumer is mostly in the base classes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from enum import Enum
from typing import Any, Final

from dispatcher.core.bounds import ORIGINAL_BYTES
from dispatcher.core.consumer_life import ConsumerLife
from dispatcher.core.ordered import OrderedSet
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.rare_facts import RareFacts, RareGroupFacts
from dispatcher.core.tables import IncarnationRow
from dispatcher.errors import InvalidTransition

# -- messages --


class MessageState(Enum):
    """Where an original stands, in the words that operators see. Exactly one holds at any time."""

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


class Original(RareFacts):
    """One original of an inbound queue, and what became of its latest copy.

    Slots and a plain constructor: one is made per message, so its cost is part of the hot path.

    `arrival` is (lane epoch, delivery tag) of the first delivery that the journal knows; a matched
    redelivery keeps it. `tag` is the delivery tag on the present connection. `content` is opaque to the
    core: what the edge publishes.
    """

    __slots__ = (
        "arrival", "attempt", "closing", "consumer", "content", "cost", "deadline_at_ms", "dispatched_at_ms",
        "epoch", "fingerprint", "first", "footprint", "group", "group_id", "group_seq", "inbound", "kind",
        "queue", "received_at_ms", "redelivered", "refusal", "seq", "size", "state", "tag", "waits_since_ms",
    )  # fmt: skip

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


class Backlog:
    """The messages of one group that wait, from one inbound queue, in that queue's order.

    `listed_in` is the list of the one source that may serve this backlog, None while none may.
    Messages that ended meanwhile (expired) stay inside until they reach the front.
    """

    __slots__ = ("group", "inbound", "messages", "listed_in")

    def __init__(self, group: Group, inbound: QueueId) -> None:
        self.group = group
        self.inbound = inbound
        self.messages: deque[Original] = deque()
        self.listed_in: OrderedDict[Backlog, None] | None = None

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
            del self.listed_in[self]
            self.listed_in = None


class Group(RareGroupFacts):
    """One message group of the lane. `in_flight` counts its unsettled copies at all consumers."""

    __slots__ = (
        "backlogs", "epoch", "flags", "fresh", "id", "in_flight", "last_seq", "owner", "pinned_to", "state",
        "target", "window",
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
        self.target: Consumer | None = None  # DRAINING: its next owner; None: the next consumer that takes it
        self.backlogs: dict[QueueId, Backlog] | None = None  # by inbound index; None: nothing waits
        self.flags: Any = None  # what operators have set: operators/flags.py has the type
        self.pinned_to: Consumer | None = None  # the only consumer that may become its owner

    def become(self, state: GroupState) -> None:
        """Move to `state`. Raises InvalidTransition for a move that the table doesn't have."""
        if state not in GROUP_TRANSITIONS[self.state]:
            raise InvalidTransition(f"group {self.id!r} can't go from {self.state.value} to {state.value}")
        self.state = state

    @property
    def taker(self) -> Consumer | None:
        """Who gets its next message; None: the consumer with the least to do."""
        return self.owner if self.owner is not None else self.pinned_to

    @property
    def is_at_rest(self) -> bool:
        """No message of it waits, here or parked, or is in flight."""
        return not (self.in_flight or self.backlogs or self.route)

    def number(self, message: Original) -> None:
        """The message goes to a consumer, with the next number under the epoch of the present assignment."""
        self.last_seq += 1
        message.group_seq, message.epoch = self.last_seq, self.epoch

    def gave_last(self, message: Original) -> bool:
        """Whether no number came behind this one, or that is not known."""
        return not self.epoch or (message.group_seq == self.last_seq and message.epoch == self.epoch)

    def renumbered(self, message: Original) -> None:
        """The owner gets this message once more, with these numbers: the next ones follow them."""
        self.last_seq = message.group_seq

    def goes_on(self, latest: Original, assigned_epoch: int) -> None:
        """This is out under a former leader, and was handed over last: the next ones follow it. By Redis the
        assignment, or the latest new epoch in it, has `assigned_epoch`; 0: that is not known."""
        self.epoch, self.last_seq = latest.epoch, latest.group_seq

    def count_out(self, message: Original) -> None:
        """One more message is in flight."""
        self.in_flight += 1

    def count_back(self, message: Original) -> None:
        """One message is in flight no more."""
        self.in_flight -= 1

    def __repr__(self) -> str:
        return f"<Group {self.id!r} {self.state.value} in_flight={self.in_flight}>"


# -- consumers --


class ConsumerSource:
    """What one consumer could receive from one inbound queue: its groups with messages there, in turn."""

    __slots__ = ("backlogs", "consumer", "in_ring", "offered", "passed_over")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.backlogs: OrderedDict[Backlog, None] = OrderedDict()
        self.in_ring = False  # in its inbound queue's list of sources
        self.offered = False  # there was room for it since it came there
        self.passed_over = 0  # so often in a row others took that room

    def has_waiting(self) -> bool:
        """Whether the delivery pass could serve it if its consumer had free capacity."""
        return bool(self.backlogs)

    def has_room(self) -> bool:
        """Whether its consumer has free capacity."""
        return self.consumer.credit > 0

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


class Consumer(ConsumerLife):
    """A consumer as the delivery pass sees it: what it has, and how much more it may get.

    `in_flight` is by seq, in the order of dispatch; credit = prefetch − in flight.
    """

    __slots__ = (
        "alone_with", "credit", "groups", "in_flight", "incoming", "next_seq", "pool_level", "sources",
    )  # fmt: skip

    def __init__(
        self, number: int, row: IncarnationRow, *, inbounds: int, first_seq: int, now_ms: int
    ) -> None:
        super().__init__(number, row, now_ms)
        self.credit = row.prefetch
        self.in_flight: dict[int, Original] = {}
        self.next_seq = first_seq
        self.groups: OrderedSet[Group] = OrderedSet()
        self.incoming: OrderedSet[Group] = OrderedSet()  # groups that go to it once they are drained
        self.sources = [ConsumerSource(self) for _ in range(inbounds)]
        self.pool_level = -1  # -1: not in the pool
        self.alone_with: Original | None = None  # it is kept free for this message, which is tried alone

    @property
    def may_receive(self) -> bool:
        """It may get the next message of a group that it owns, or that is pinned to it, now."""
        return self.credit > 0 and self.receives and self.alone_with is None

    @property
    def takes_new(self) -> bool:
        """It may get a group without an owner, or an ungrouped message, now."""
        return self.may_receive and self.is_open

    def __repr__(self) -> str:
        return f"<Consumer {self.id} #{self.number} {self.state.value} in_flight={len(self.in_flight)}>"
