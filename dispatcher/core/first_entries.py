"""Which originals a record is an entry of: the first one of an original says that something is decided."""

from __future__ import annotations

from collections.abc import Iterator

from dispatcher.core.effects import Dispatched, Ended, OpenEntry, Record, SettledEntries
from dispatcher.core.parking_effects import Moving
from dispatcher.core.replay import Arrival

#: A queue and an original's arrival in it.
Place = tuple[int, Arrival]


def places(record: Record) -> Iterator[Place]:
    """The originals that a record is an entry of."""
    match record:
        case Dispatched(message=message):
            yield message.queue, message.arrival
        case OpenEntry() | Ended() | Moving():
            yield record.inbound, record.arrival
        case SettledEntries():
            for arrival, _ in record.entries:
                yield record.inbound, arrival
