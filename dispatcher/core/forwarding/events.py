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
    """How many readers the queue of a hand-over consumer has, and how many messages wait in it."""

    queue: str
    readers: int
    ready: int


@dataclass(frozen=True, slots=True)
class ReadersChanged:
    """The queue of a hand-over consumer got or lost a reader."""

    queue: str


@dataclass(frozen=True, slots=True)
class QueueReclaimed:
    """All messages of a hand-over consumer's queue; no other reader gets it until it is released."""

    queue: str
    messages: list[ReclaimedCopy]


@dataclass(frozen=True, slots=True)
class QueueInUse:
    """The queue can't be taken: it has a reader."""

    queue: str


@dataclass(frozen=True, slots=True)
class QueueReleased:
    """The queue has no reader any more, and its acked messages are gone."""

    queue: str


@dataclass(frozen=True, slots=True)
class ReclaimedForwarded:
    """The broker has stored the copy of a reclaimed message: for another consumer, or in the dead queue."""

    handed: ReclaimedCopy


@dataclass(frozen=True, slots=True)
class ReclaimedRefused:
    """The broker refuses the copy of a reclaimed message for good, and says why."""

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
