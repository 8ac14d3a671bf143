"""What happened: facts that the edges report to the core. Times are ms since 1970."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dispatcher.core.forwarding.orders import ReclaimedCopy
from dispatcher.core.model import Message
from dispatcher.core.orders import LookUp
from dispatcher.core.records import Dispatched
from dispatcher.protocol import Heartbeat, Join, Leave, Marker, Settle


@dataclass(frozen=True, slots=True)
class MessagesArrived:
    """Originals delivered by the broker, in their queues' order."""

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class RedeliveriesEnded:
    """Nothing that was unacked before this connection is still to come from this inbound queue."""

    inbound: int


@dataclass(frozen=True, slots=True)
class QueueReturned:
    """A mandatory publish to this consumer queue came back, or a notice says that the queue is gone."""

    queue: str


@dataclass(frozen=True, slots=True)
class QueueNacked:
    """The broker refused a publish to this consumer queue: the copy is lost, the queue is not."""

    queue: str


@dataclass(frozen=True, slots=True)
class PingRouted:
    """The broker confirmed a ping to this consumer queue without returning it: the consumer is connected."""

    queue: str


@dataclass(frozen=True, slots=True)
class PublishersBlocked:
    """The broker stops reading from whoever publishes (out of memory or disk), or does it again."""

    blocked: bool


@dataclass(frozen=True, slots=True)
class CopiesConfirmed:
    """The broker answered (confirmed, nacked or returned) this many copies of this many bytes."""

    count: int
    size: int


@dataclass(frozen=True, slots=True)
class DeadLetterConfirmed:
    """The broker has stored this message's copy in the dead queue."""

    message: Message


@dataclass(frozen=True, slots=True)
class CopyRefused:
    """The broker closed the channel or the connection because of this copy: no consumer has it."""

    copy: Dispatched
    problem: str


@dataclass(frozen=True, slots=True)
class DeadLetterRefused:
    """The broker closed the channel or the connection because of this message's copy for the dead queue."""

    message: Message
    problem: str


@dataclass(frozen=True, slots=True)
class AcksProven:
    """The broker has processed the acks of the first `count` settled originals of this queue that were
    not proven before."""

    inbound: int
    count: int


@dataclass(frozen=True, slots=True)
class IdsLookedUp:
    """The commit that asked for these ids is done: the answer is in it."""

    lookup: LookUp


@dataclass(frozen=True, slots=True)
class CommandReceived:
    """An operator's command that changes something; `token` comes back in the reply."""

    token: Any
    uuid: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TargetOpened:
    """The target of this operation is there, and messages can be sent to it."""

    operation: str


@dataclass(frozen=True, slots=True)
class TargetRefused:
    """The target of this operation is not there, or not for us."""

    operation: str
    problem: str


@dataclass(frozen=True, slots=True)
class TransferConfirmed:
    """The broker has stored the copy where this operation sends it."""

    operation: str
    message: Message


@dataclass(frozen=True, slots=True)
class TransferRefused:
    """The broker did not take the copy that this operation sends; not known: perhaps it did."""

    operation: str
    message: Message
    problem: str
    is_known: bool


@dataclass(frozen=True, slots=True)
class ParkingQueueOpened:
    """The parking queue is declared and can be read and published to."""

    queue: int


@dataclass(frozen=True, slots=True)
class ParkingQueueRead:
    """What an order to read brought, in the queue's order; `is_end`: then nothing was left in it."""

    queue: int
    messages: list[Message]
    is_end: bool
    left: int  # messages still in it


@dataclass(frozen=True, slots=True)
class RelocationConfirmed:
    """The broker has stored the copy in its parking queue, as it was published in that term."""

    message: Message
    term: int


@dataclass(frozen=True, slots=True)
class RelocationRefused:
    """The broker did not take the copy for a parking queue that was published in that term."""

    message: Message
    term: int


@dataclass(frozen=True, slots=True)
class RelocationImpossible:
    """The broker can't be made to take the copy for a parking queue, and says why."""

    message: Message
    problem: str


@dataclass(frozen=True, slots=True)
class ParkingQueueDeleted:
    """The answer to an order to delete; not gone: something was in it."""

    queue: int
    is_gone: bool


@dataclass(frozen=True, slots=True)
class CopiesStored:
    """The broker has stored these copies in the queue of a hand-over consumer."""

    incarnation: int
    seqs: list[int]


@dataclass(frozen=True, slots=True)
class QueueInspected:
    """How many read the queue of a hand-over consumer, and how many messages wait in it, with nobody."""

    queue: str
    readers: int
    ready: int


@dataclass(frozen=True, slots=True)
class ReadersChanged:
    """Somebody began or ceased to read the queue of a hand-over consumer."""

    queue: str


@dataclass(frozen=True, slots=True)
class QueueReclaimed:
    """All that was in a hand-over consumer's queue; nobody else reads it until it is released."""

    queue: str
    messages: list[ReclaimedCopy]


@dataclass(frozen=True, slots=True)
class QueueInUse:
    """The queue can't be taken: somebody reads it."""

    queue: str


@dataclass(frozen=True, slots=True)
class QueueReleased:
    """The queue is read no more, and what was acked of it is gone."""

    queue: str


@dataclass(frozen=True, slots=True)
class ReclaimedForwarded:
    """The broker has stored the copy of what was read back: for another consumer, or in the dead queue."""

    handed: ReclaimedCopy


@dataclass(frozen=True, slots=True)
class ReclaimedRefused:
    """The broker can't be made to take the copy of what was read back, and says why."""

    handed: ReclaimedCopy
    problem: str


@dataclass(frozen=True, slots=True)
class MessageRejected:
    """A hand-over consumer did not take a message, or the broker gave it up, for this reason."""

    handed: ReclaimedCopy
    reason: str


Event = (
    MessagesArrived
    | RedeliveriesEnded
    | QueueReturned
    | QueueNacked
    | PingRouted
    | PublishersBlocked
    | CopiesConfirmed
    | DeadLetterConfirmed
    | CopyRefused
    | DeadLetterRefused
    | AcksProven
    | IdsLookedUp
    | CommandReceived
    | TargetOpened
    | TargetRefused
    | TransferConfirmed
    | TransferRefused
    | ParkingQueueOpened
    | ParkingQueueRead
    | RelocationConfirmed
    | RelocationRefused
    | RelocationImpossible
    | ParkingQueueDeleted
    | CopiesStored
    | QueueInspected
    | ReadersChanged
    | QueueReclaimed
    | QueueInUse
    | QueueReleased
    | ReclaimedForwarded
    | ReclaimedRefused
    | MessageRejected
    | Join
    | Settle
    | Leave
    | Heartbeat
    | Marker
)
