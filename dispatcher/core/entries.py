"""Journal entries: of a message as it stands now, and which originals a record is an entry of."""

from __future__ import annotations

from collections.abc import Iterator

from dispatcher.core.model import Consumer, Original
from dispatcher.core.parking.orders import Relocating
from dispatcher.core.records import DeadLetterPending, Dispatched, OpenEntry, Record, SettledEntries
from dispatcher.wire.origin import Arrival

#: A queue and an original's arrival in it.
OriginalKey = tuple[int, Arrival]


def copy_of(message: Original, consumer: Consumer) -> Dispatched:
    """The order to send a message again as it was sent before, to its consumer's present queue."""
    return Dispatched(
        message, consumer.number, consumer.queue, message.seq, message.group_seq, message.epoch,
        message.attempt, message.first,
    )  # fmt: skip


def open_entry(message: Original) -> OpenEntry:
    """The entry of a message that is in flight, or waits after it was taken back (then no consumer has
    it)."""
    return OpenEntry(
        message.queue, message.arrival, message.fingerprint,
        message.consumer.number if message.consumer is not None else 0, message.seq, message.group_id,
        message.group_seq, message.epoch, message.attempt, message.first,
    )  # fmt: skip


def ended_entry(message: Original, reason: str) -> DeadLetterPending:
    """The entry of a message that is on its way to the dead queue."""
    return DeadLetterPending(
        message.queue, message.arrival, message.fingerprint, message.group_id, message.attempt, reason,
        message.calls,
    )  # fmt: skip


def originals_of(record: Record) -> Iterator[OriginalKey]:
    """The originals that a record is an entry of. The first such record says that something is decided."""
    match record:
        case Dispatched(message=message):
            yield message.queue, message.arrival
        case OpenEntry() | DeadLetterPending() | Relocating():
            yield record.inbound, record.arrival
        case SettledEntries():
            for arrival, _ in record.entries:
                yield record.inbound, arrival
