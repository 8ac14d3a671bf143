"""Records: the journal, in the order of the decisions. Redis keeps them, and the next leader reads them."""

from __future__ import annotations

from typing import Final, NamedTuple

from dispatcher.core.model import Original
from dispatcher.core.parking.orders import ParkingRecord, Relocating
from dispatcher.core.queue_ids import QueueId


class JournalReset(NamedTuple):
    """Everything before this record has ended: the following records repeat all that is still open."""


class Dispatched(NamedTuple):
    """An original was handed to a consumer. Also the order to publish its copy.

    The same (inbound, arrival) again replaces the earlier record: the message was taken back between.
    """

    message: Original  # the edge takes content and size from it, the journal inbound, arrival and fingerprint
    incarnation: int
    queue: str  # the consumer queue at the moment of the decision
    seq: int
    group_seq: int  # 0: ungrouped, no order check
    epoch: int
    attempt: int
    first: bool = False  # first of the group for this consumer since the group was assigned to it


class OpenEntry(NamedTuple):
    """A dispatched message as the journal keeps it (what `Dispatched` is after decoding)."""

    inbound: QueueId  # UNKNOWN_INBOUND: only its consumer told us
    arrival: tuple[int, int]
    fingerprint: bytes
    incarnation: int  # 0: no consumer has it (refused before any dispatch)
    seq: int
    group: bytes | None
    group_seq: int
    epoch: int
    attempt: int
    first: bool = False


class SettledRange(NamedTuple):
    """The incarnation's entries from first to last (inclusive) are settled; every number in it was open."""

    incarnation: int
    first: int
    last: int


class DeadLetterPending(NamedTuple):
    """The message goes to the dead queue for this reason; it stays open until its copy is confirmed."""

    inbound: QueueId
    arrival: tuple[int, int]
    fingerprint: bytes
    group: bytes | None
    attempt: int
    reason: str
    calls: int = 0  # of its handler, if its consumer has failed it


class Discharged(NamedTuple):
    """The broker has the dead queue's copy: the original is settled."""

    inbound: QueueId
    arrival: tuple[int, int]


class Vanished(NamedTuple):
    """The original is no longer in its queue: others deleted it, or it expired."""

    inbound: QueueId
    arrival: tuple[int, int]


class IncarnationEnded(NamedTuple):
    """The incarnation has ended; its open entries have no consumer."""

    incarnation: int


class SettledEntries(NamedTuple):
    """Settled originals that a killed broker may deliver again: (arrival, fingerprint) in settle order."""

    inbound: QueueId
    proven: bool
    entries: tuple[tuple[tuple[int, int], bytes], ...]


class ProvenAcks(NamedTuple):
    """The acks of the `count` longest settled unproven originals of this queue are on the broker."""

    inbound: QueueId
    count: int  # type: ignore[assignment]  # a tuple has a method of that name, which nobody calls here


class NumbersUsed(NamedTuple):
    """This incarnation's seqs up to `highest` were used; for NOBODY, epochs.

    Part of every checkpoint, so that numbers don't go back even when the clock does.
    """

    incarnation: int
    highest: int


Record = (
    JournalReset | Dispatched | OpenEntry | SettledRange | DeadLetterPending
    | Discharged | Vanished | IncarnationEnded | SettledEntries | ProvenAcks | NumbersUsed | ParkingRecord
)  # fmt: skip
#: An open message: in flight, on its way to the dead queue, or to a parking queue.
JournalEntry = OpenEntry | DeadLetterPending | Relocating
#: Makes one of its fields, past the constructor of its class: that is a Python function.
new_record: Final = tuple.__new__
#: In place of an incarnation's number: no consumer has the message.
NOBODY = 0
