"""What the edges report of parking queues."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.model import Original
from dispatcher.core.queue_ids import QueueId


@dataclass(frozen=True, slots=True)
class ParkingQueueOpened:
    """The parking queue is declared and can be read and published to."""

    queue: QueueId


@dataclass(frozen=True, slots=True)
class ParkingQueueUnavailable:
    """RabbitMQ can't open the parking queue now, and says why. It is tried again until it is open."""

    queue: QueueId
    problem: str


@dataclass(frozen=True, slots=True)
class ParkingQueueRead:
    """What an order to read brought, in the queue's order; `is_end`: then nothing was left in it."""

    queue: QueueId
    messages: list[Original]
    is_end: bool
    left: int  # messages still in it


@dataclass(frozen=True, slots=True)
class RelocationConfirmed:
    """The broker has stored the copy in its parking queue, as it was published in that term."""

    message: Original
    term: int


@dataclass(frozen=True, slots=True)
class RelocationRefused:
    """The broker did not take the copy for a parking queue that was published in that term."""

    message: Original
    term: int


@dataclass(frozen=True, slots=True)
class RelocationImpossible:
    """The broker can't be made to take the copy for a parking queue, and says why."""

    message: Original
    problem: str


@dataclass(frozen=True, slots=True)
class ParkingQueueDeleted:
    """The answer to an order to delete; not gone: something was in it."""

    queue: QueueId
    is_gone: bool


ParkingEvent = (
    ParkingQueueOpened
    | ParkingQueueUnavailable
    | ParkingQueueRead
    | RelocationConfirmed
    | RelocationRefused
    | RelocationImpossible
    | ParkingQueueDeleted
)
