"""What the core knows about messages: the originals held and the copies in flight."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from dispatcher.core.bounds import ORIGINAL_BYTES

if TYPE_CHECKING:
    from dispatcher.core.consumers import Consumer
    from dispatcher.core.groups import Group
    from dispatcher.core.parking.queue import Relocation


#: In the place of how much a lane had settled when a message's first consumer died.
NO_DEATH: Final = -1


class MessageState(Enum):
    """Where an original stands. Exactly one holds at any time."""

    WAITING = "held"  # here, waiting for its turn
    IN_FLIGHT = "in flight"  # dispatched to `consumer`, not settled
    RELOCATING = "moving"  # on its way to a parking queue, waiting for the broker's confirm
    ENDING = "ending"  # on its way to the dead queue, waiting for the broker's confirm
    TRANSFERRING = "leaving"  # on its way to where an operator sends it, waiting for the broker's confirm
    SETTLED = "settled"  # over; its inbound ack may still be on the way


class Message:
    """One original of an inbound queue, and what became of its latest copy.

    Slots and a plain constructor: one is made per message, so its cost is part of the hot path.

    `arrival` is (lane epoch, delivery tag) of the first delivery that the journal knows; a matched
    redelivery keeps it. `tag` is the delivery tag on the present connection, 0 while the original has
    not come back after a recovery. `content` is opaque to the core: what the edge publishes.
    """

    __slots__ = (
        "arrival", "attempt", "calls", "closing", "consumer", "content", "cost", "deadline_at_ms",
        "deliveries", "dispatched_at_ms", "epoch", "fingerprint", "first", "group", "group_id", "group_seq",
        "inbound", "kind", "message_id", "relocation", "number", "overdue", "rank_override", "queue", "received_at_ms",
        "redelivered", "refusal", "origin_arrival", "seq", "settles_at_death", "size", "state", "tag", "term",
        "waits_since_ms",
    )  # fmt: skip

    def __init__(
        self,
        inbound: int,
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
        self.origin_arrival: tuple[int, int] | None = (
            None  # its arrival in the first queue that it was in, if not here
        )
        self.term = 0  # of a parked copy: in which round of publishes it was made
        self.relocation: Relocation | None = None  # it is, or will be, on its way to a parking queue
        self.tag = tag
        self.arrival = arrival
        self.fingerprint = fingerprint  # 16 bytes
        self.group_id = group_id  # None: ungrouped
        self.content = content
        self.size = size  # bytes of its names, properties and body
        self.received_at_ms = received_at_ms
        self.waits_since_ms = received_at_ms  # a parked one: received before it was parked
        self.redelivered = redelivered  # the broker's flag: says that it *may* have been delivered before
        self.closing = closing  # its negative sequence closes the group once it is settled
        self.deadline_at_ms = deadline_at_ms  # ms since 1970, None: never expires
        self.refusal = refusal  # why the edge could not understand it; goes to the dead queue
        self.cost = cost  # in DWRR units
        self.kind: bytes | None = None  # its `type`, where the work of each is measured or recorded
        self.message_id: bytes | None = None  # 16 bytes made of it, where the lane drops repeated messages
        self.number: int | None = None  # its producer's, in its group, where the lane checks that
        self.rank_override: tuple[int, ...] | None = (
            None  # where it ranks, if others that came before it wait for it
        )
        self.deliveries = 0  # how often its queue has delivered it before, if that counts: a quorum queue
        self.state = MessageState.WAITING
        self.attempt = 0  # hand-overs so far
        self.calls = 0  # of its handler, by the consumer that has failed it
        self.group: Group | None = None
        self.consumer: Consumer | None = None
        self.seq = 0
        self.epoch = 0
        self.group_seq = 0
        self.first = False  # first of its group for its consumer since the group was assigned to it
        self.dispatched_at_ms = 0
        self.overdue = False  # its consumer has had it for longer than the lane's ack_timeout
        #: How much the lane's consumers had settled when the first consumer died with it; 0 if that was
        #: before this leader's start, which settles count from.
        self.settles_at_death = (
            0  # the lane's settles at its first death; NO_DEATH: it has only failed so far
        )

    @property
    def footprint(self) -> int:
        """Bytes that it takes of the memory while its original is here."""
        return self.size + ORIGINAL_BYTES

    @property
    def order(self) -> tuple[int, int]:
        """Its place among the messages of its group that came through the same inbound queue."""
        return self.origin_arrival or self.arrival

    @property
    def rank(self) -> tuple[int, ...]:
        """Its place in its backlog: its `order`, but for what came later than its producer meant it to."""
        return self.rank_override or self.origin_arrival or self.arrival

    def __repr__(self) -> str:
        return f"<Message {self.group_id!r} {self.arrival} {self.state.value} seq={self.seq}>"


class BarrierMark(Message):
    """The marker of an operation's barrier: never work."""

    __slots__ = ("command",)

    command: str  # uuid of the operation, perhaps of one that nobody knows any more
