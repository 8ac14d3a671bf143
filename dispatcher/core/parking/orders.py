"""Records and orders of parking (docs/architecture.md, "Parking"); `effects` has the unions."""

from __future__ import annotations

from typing import Final, NamedTuple

from dispatcher.core.model import Original
from dispatcher.core.queue_ids import QueueId

#: In place of a group's id, which is never empty (O-1): messages of any group may be there.
ANY_GROUP: Final = b""

# --- records ------------------------------------------------------------------------------------------------


class ParkingQueueNamed(NamedTuple):
    """This parking queue exists, or will: committed before it is declared."""

    queue: QueueId
    consumer: str  # whose groups are parked there; empty: of no certain one


class ParkingQueueForgotten(NamedTuple):
    """This parking queue was deleted. A checkpoint says so as long as its name is not to be given again."""

    queue: QueueId


class GroupParked(NamedTuple):
    """From here on what arrives of the group goes to the end of this parking queue."""

    group: bytes | None  # None: messages without a group, which have no route
    queue: QueueId
    count: int  # type: ignore[assignment]  # how many of its originals are in it; a tuple's method is not called
    since_ms: int = 0  # when the oldest of these was first received, ms since 1970; 0: not known


class QueueUnparked(NamedTuple):
    """This parking queue was read to its end: no group goes there any more."""

    queue: QueueId


class Relocating(NamedTuple):
    """An original is on its way to a parking queue; open until the copy there is confirmed."""

    inbound: QueueId  # the queue that it is in
    arrival: tuple[int, int]
    fingerprint: bytes
    group: bytes | None
    attempt: int
    target: QueueId
    copy: bytes  # the fingerprint that it has in the parking queue
    term: int  # 0: published once; else copies of it from before this term are void


class Relocated(NamedTuple):
    """The parking queue has the copy: the original is settled where it was."""

    inbound: QueueId
    arrival: tuple[int, int]


class TermNeeded(NamedTuple):
    """Copies of this original from before that term are void. Only checkpoints need to say so."""

    queue: QueueId
    copy: bytes
    term: int


ParkingRecord = (
    ParkingQueueNamed
    | ParkingQueueForgotten
    | GroupParked
    | QueueUnparked
    | Relocating
    | Relocated
    | TermNeeded
)

# --- actions ------------------------------------------------------------------------------------------------


class OpenParkingQueue(NamedTuple):
    """Declare the parking queue and be ready to read it; answer with ParkingQueueOpened."""

    queue: QueueId


class ReadParkingQueue(NamedTuple):
    """Fetch up to `limit` messages; answer with ParkingQueueRead."""

    queue: QueueId
    limit: int


class ParkCopy(NamedTuple):
    """Publish the original to a parking queue; answer with RelocationConfirmed or RelocationRefused."""

    message: Original
    queue: QueueId
    term: int


class GiveBack(NamedTuple):
    """Put these originals back into their places in this parking queue."""

    queue: QueueId
    tags: tuple[int, ...]


class DeleteParkingQueue(NamedTuple):
    """Delete it unless something is in it; answer with ParkingQueueDeleted."""

    queue: QueueId


class AbandonParkingQueue(NamedTuple):
    """Try to open it no longer: nothing that counts was ever in it."""

    queue: QueueId


ParkingAction = (
    OpenParkingQueue | ReadParkingQueue | ParkCopy | GiveBack | DeleteParkingQueue | AbandonParkingQueue
)
