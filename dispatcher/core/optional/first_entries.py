"""Which originals a record is an entry of: the first one of an original says that something is decided."""

from __future__ import annotations

from collections.abc import Iterator

from dispatcher.core.parking.orders import Relocating
from dispatcher.core.records import DeadLetterPending, Dispatched, OpenEntry, Record, SettledEntries
from dispatcher.core.recovery.journal_replay import Arrival

#: A queue and an original's arrival in it.
OriginalKey = tuple[int, Arrival]


def originals_of(record: Record) -> Iterator[OriginalKey]:
    """The originals that a record is an entry of."""
    match record:
        case Dispatched(message=message):
            yield message.queue, message.arrival
        case OpenEntry() | DeadLetterPending() | Relocating():
            yield record.inbound, record.arrival
        case SettledEntries():
            for arrival, _ in record.entries:
                yield record.inbound, arrival
