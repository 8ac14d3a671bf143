"""What the edges report of the queues of a forwarding lane's consumers."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.forwarding.orders import ReclaimedCopy


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


ForwardingEvent = (
    CopiesStored
    | QueueInspected
    | ReadersChanged
    | QueueReclaimed
    | QueueInUse
    | QueueReleased
    | ReclaimedForwarded
    | ReclaimedRefused
    | MessageRejected
)
