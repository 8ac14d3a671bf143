"""Reads a journal back: from records in the order in which they were committed to what is still true."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from dispatcher.core.effects import (
    NOBODY,
    Buried,
    Ended,
    OpenEntry,
    Proven,
    Record,
    Reset,
    SettledEntries,
    SettledRange,
    Taken,
    Used,
    Vanished,
)
from dispatcher.core.state import PROVEN_PER_INBOUND_MAX

Arrival = tuple[int, int]


class Replay:
    """What a journal says. Entries are in the order of their inbound queues' arrivals once `finish` ran."""

    def __init__(self) -> None:
        self.entries: dict[tuple[int, Arrival], OpenEntry | Ended] = {}
        #: By inbound queue: settled originals by arrival, in settle order, whose acks may not have arrived …
        self.unproven: dict[int, dict[Arrival, bytes]] = {}
        #: … and those whose acks have; kept in case the broker is killed.
        self.proven: dict[int, deque[tuple[Arrival, bytes]]] = {}
        self._by_seq: dict[tuple[int, int], tuple[int, Arrival]] = {}
        self._taken: set[int] = set()
        #: The highest seq of each incarnation that was ever used, and the highest epoch.
        self.highest_seq: dict[int, int] = {}
        self.highest_epoch = 0

    def read(self, records: Iterable[Record]) -> Replay:
        """Apply records, oldest first; returns itself."""
        for record in records:
            match record:
                case OpenEntry():
                    self._opened(record)
                case SettledRange():
                    self._settled(record)
                case Ended():
                    self._drop((record.inbound, record.arrival))
                    self.entries[record.inbound, record.arrival] = record
                case Reset():
                    self.__init__()  # type: ignore[misc]
                case _:
                    self._read_rare(record)
        return self

    def _read_rare(self, record: Record) -> None:
        match record:
            case Proven():
                self._prove(record)
            case Buried() | Vanished():
                entry = self._drop((record.inbound, record.arrival))
                if isinstance(record, Vanished):
                    self.unproven.get(record.inbound, {}).pop(record.arrival, None)
                elif entry is not None:
                    self._keep_settled(entry.inbound, entry.arrival, entry.fingerprint)
            case Used():
                self._used(record.incarnation, record.highest)
            case Taken():
                self._taken.add(record.incarnation)
            case SettledEntries():
                for arrival, fingerprint in record.entries:
                    self._keep_settled(record.inbound, arrival, fingerprint, proven=record.proven)

    def finish(self) -> list[OpenEntry | Ended]:
        """All open entries in arrival order; those of incarnations that are over belong to nobody (0)."""
        entries: list[OpenEntry | Ended] = [
            entry._replace(incarnation=0)
            if isinstance(entry, OpenEntry) and entry.incarnation in self._taken
            else entry
            for entry in self.entries.values()
        ]
        return sorted(entries, key=lambda entry: (entry.inbound, entry.arrival))

    def _opened(self, entry: OpenEntry) -> None:
        key = (entry.inbound, entry.arrival)
        self._drop(key)
        self.entries[key] = entry
        if entry.incarnation:
            self._by_seq[entry.incarnation, entry.seq] = key
            self._used(entry.incarnation, entry.seq)
        self._used(NOBODY, entry.epoch)

    def _used(self, incarnation: int, highest: int) -> None:
        if incarnation == NOBODY:
            self.highest_epoch = max(self.highest_epoch, highest)
        else:
            self.highest_seq[incarnation] = max(self.highest_seq.get(incarnation, 0), highest)

    def _settled(self, record: SettledRange) -> None:
        for seq in range(record.first, record.last + 1):
            key = self._by_seq.get((record.incarnation, seq))
            entry = self._drop(key) if key is not None else None
            if entry is not None:
                self._keep_settled(entry.inbound, entry.arrival, entry.fingerprint)

    def _drop(self, key: tuple[int, Arrival]) -> OpenEntry | Ended | None:
        entry = self.entries.pop(key, None)
        if isinstance(entry, OpenEntry):
            self._by_seq.pop((entry.incarnation, entry.seq), None)
        return entry

    def _keep_settled(
        self, inbound: int, arrival: Arrival, fingerprint: bytes, *, proven: bool = False
    ) -> None:
        unproven = self.unproven.setdefault(inbound, {})
        unproven.pop(arrival, None)  # settled again: it moves to the end
        if proven:
            kept = self.proven.setdefault(inbound, deque(maxlen=PROVEN_PER_INBOUND_MAX))
            kept.append((arrival, fingerprint))
        else:
            unproven[arrival] = fingerprint

    def _prove(self, record: Proven) -> None:
        unproven = self.unproven.get(record.inbound, {})
        for arrival in list(islice(unproven, record.count)):
            self._keep_settled(record.inbound, arrival, unproven[arrival], proven=True)
