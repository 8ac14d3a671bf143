"""Reads a journal back: from records in the order of their commits to the state that they leave.

Here are the entries, settles and acks of all queues. Records that say more of other queues than the inbound
ones are read by who keeps these (`JournalReader`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

from dispatcher.core.bounds import PROVEN_PER_INBOUND_MAX
from dispatcher.core.queue_ids import QueueId, is_known_inbound
from dispatcher.core.records import (
    NOBODY,
    DeadLetterPending,
    Discharged,
    IncarnationEnded,
    JournalEntry,
    JournalReset,
    NumbersUsed,
    OpenEntry,
    ProvenAcks,
    Record,
    SettledEntries,
    SettledRange,
    Vanished,
)

Arrival = tuple[int, int]


class JournalReader(Protocol):
    """Reads what a journal says of queues that are none of the inbound ones, record by record."""

    def begin_again(self) -> None:
        """All that is still true follows."""

    def read(self, record: Record) -> None:
        """A record that does not concern the entries of every lane."""

    def opened(self, entry: JournalEntry) -> None:
        """An original that is in such a queue has an entry from here on."""

    def ended(self, entry: JournalEntry) -> None:
        """An original that had an entry has ended in such a queue."""


class JournalReplay:
    """What a journal says. Entries are in the order of their inbound queues' arrivals once `finish` ran."""

    def __init__(self) -> None:
        self.others: JournalReader | None = None
        self._begin_again()

    def _begin_again(self) -> None:
        if self.others is not None:
            self.others.begin_again()
        self.entries: dict[tuple[QueueId, Arrival], JournalEntry] = {}
        #: By inbound queue: settled originals by arrival, in settle order, whose acks may not have arrived …
        self.unproven: dict[QueueId, dict[Arrival, bytes]] = {}
        #: … and those whose acks have; kept in case the broker is killed.
        self.proven: dict[QueueId, deque[tuple[Arrival, bytes]]] = {}
        self._by_seq: dict[tuple[int, int], OpenEntry] = {}
        self._ended: set[int] = set()
        #: The highest seq of each incarnation that was ever used, and the highest epoch.
        self.highest_seq: dict[int, int] = {}
        self.highest_epoch = 0

    def read(self, records: Iterable[Record]) -> JournalReplay:
        """Apply records, oldest first; returns itself."""
        for record in records:
            if isinstance(record, OpenEntry):
                self._opened(record)
            elif isinstance(record, SettledRange):
                self._settled(record)
            elif isinstance(record, ProvenAcks):
                self._prove(record)
            else:
                self._read_rare(record)
        return self

    def _read_rare(self, record: Record) -> None:
        match record:
            case JournalReset():
                self._begin_again()
            case DeadLetterPending():
                self.open(record)
            case Discharged():
                entry = self.take_out((record.inbound, record.arrival))
                if entry is not None:
                    self.end(entry)
            case Vanished():
                self.take_out((record.inbound, record.arrival))
                self.unproven.get(record.inbound, {}).pop(record.arrival, None)
            case NumbersUsed():
                self._used(record.incarnation, record.highest)
            case IncarnationEnded():
                self._ended.add(record.incarnation)
            case SettledEntries():
                self._read_settled(record)
            case _:
                if self.others is not None:
                    self.others.read(record)

    def open(self, entry: JournalEntry) -> None:
        """This is the entry of its original from here on."""
        self.take_out((entry.inbound, entry.arrival))
        self.entries[entry.inbound, entry.arrival] = entry
        if self.others is not None and not is_known_inbound(entry.inbound):
            self.others.opened(entry)

    def end(self, entry: JournalEntry) -> None:
        """The original of an entry that was taken out is settled."""
        self._note_unproven(entry.inbound, entry.arrival, entry.fingerprint)
        if self.others is not None and not is_known_inbound(entry.inbound):
            self.others.ended(entry)

    def finish(self) -> list[JournalEntry]:
        """All open entries in arrival order; those of ended incarnations have no consumer (0)."""
        entries: list[JournalEntry] = [
            entry._replace(incarnation=0)
            if isinstance(entry, OpenEntry) and entry.incarnation in self._ended
            else entry
            for entry in self.entries.values()
        ]
        return sorted(entries, key=lambda entry: (entry.inbound, entry.arrival))

    # A take-over waits for the journal to be read, and nearly all of it are entries, ranges and proofs: these
    # three call as little as they can.

    def _opened(self, entry: OpenEntry) -> None:
        key = (entry.inbound, entry.arrival)
        if key in self.entries:
            self.take_out(key)
        self.entries[key] = entry
        incarnation, seq = entry.incarnation, entry.seq
        if incarnation:
            self._by_seq[incarnation, seq] = entry
            if seq > self.highest_seq.get(incarnation, 0):
                self.highest_seq[incarnation] = seq
        if entry.epoch > self.highest_epoch:
            self.highest_epoch = entry.epoch
        if self.others is not None and not is_known_inbound(entry.inbound):
            self.others.opened(entry)

    def _settled(self, record: SettledRange) -> None:
        incarnation = record.incarnation
        for seq in range(record.first, record.last + 1):
            entry = self._by_seq.pop((incarnation, seq), None)
            if entry is not None:
                inbound, arrival = entry.inbound, entry.arrival
                self.entries.pop((inbound, arrival), None)
                self._note_unproven(inbound, arrival, entry.fingerprint)
                if self.others is not None and not is_known_inbound(inbound):
                    self.others.ended(entry)

    def _prove(self, record: ProvenAcks) -> None:
        unproven = self.unproven.get(record.inbound, {})
        arrivals = list(islice(unproven, record.count))
        self._proven_of(record.inbound).extend([(arrival, unproven.pop(arrival)) for arrival in arrivals])

    def _read_settled(self, record: SettledEntries) -> None:
        if not record.proven:
            for arrival, fingerprint in record.entries:
                self._note_unproven(record.inbound, arrival, fingerprint)
            return
        unproven = self.unproven.get(record.inbound)
        if unproven:
            for arrival, _ in record.entries:
                unproven.pop(arrival, None)
        self._proven_of(record.inbound).extend(record.entries)

    def _used(self, incarnation: int, highest: int) -> None:
        if incarnation == NOBODY:
            self.highest_epoch = max(self.highest_epoch, highest)
        else:
            self.highest_seq[incarnation] = max(self.highest_seq.get(incarnation, 0), highest)

    def take_out(self, key: tuple[QueueId, Arrival]) -> JournalEntry | None:
        """The entry of this original, which has none any more."""
        entry = self.entries.pop(key, None)
        if isinstance(entry, OpenEntry):
            self._by_seq.pop((entry.incarnation, entry.seq), None)
        return entry

    def _note_unproven(self, inbound: QueueId, arrival: Arrival, fingerprint: bytes) -> None:
        unproven = self.unproven.setdefault(inbound, {})
        unproven.pop(arrival, None)  # settled again: it moves to the end
        unproven[arrival] = fingerprint

    def _proven_of(self, inbound: QueueId) -> deque[tuple[Arrival, bytes]]:
        proven = self.proven.get(inbound)
        if proven is None:
            proven = self.proven[inbound] = deque(maxlen=PROVEN_PER_INBOUND_MAX)
        return proven
