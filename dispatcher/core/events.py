"""What happened: facts that the edges report to the core. Times are ms since 1970."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dispatcher.core.forwarding.events import ForwardingEvent
from dispatcher.core.model import Original
from dispatcher.core.operations.events import OperationEvent
from dispatcher.core.orders import LookUp
from dispatcher.core.parking.events import ParkingEvent
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.records import Dispatched
from dispatcher.wire.protocol import Heartbeat, Join, Leave, Marker, Settle


@dataclass(frozen=True, slots=True)
class MessagesArrived:
    """Originals delivered by the broker, in their queues' order."""

    messages: list[Original]


@dataclass(frozen=True, slots=True)
class RedeliveriesEnded:
    """Nothing that was unacked before this connection is still to come from this inbound queue."""

    inbound: QueueId


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
    """The broker stops reading from publishers (out of memory or disk), or reads again."""

    blocked: bool


@dataclass(frozen=True, slots=True)
class CopiesConfirmed:
    """The broker answered (confirmed, nacked or returned) this many copies of this many bytes."""

    count: int
    size: int


@dataclass(frozen=True, slots=True)
class DeadLetterConfirmed:
    """The broker has stored this message's copy in the dead queue."""

    message: Original


@dataclass(frozen=True, slots=True)
class CopyRefused:
    """The broker closed the channel or the connection because of this copy: no consumer has it."""

    copy: Dispatched
    problem: str


@dataclass(frozen=True, slots=True)
class DeadLetterRefused:
    """The broker closed the channel or the connection because of this message's copy for the dead queue."""

    message: Original
    problem: str


@dataclass(frozen=True, slots=True)
class AcksProven:
    """The broker has processed the acks of the first `count` settled originals of this queue that were
    not proven before."""

    inbound: QueueId
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
    user: str | None = None  # who sent it, as RabbitMQ has validated; None: nothing says so


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
    | ParkingEvent
    | ForwardingEvent
    | OperationEvent
    | Join
    | Settle
    | Leave
    | Heartbeat
    | Marker
)
