"""What a journal says of parking queues: their names, whose messages go there, and which copies count."""

from __future__ import annotations

from collections import Counter

from dispatcher.core.parking.orders import (
    GroupParked,
    ParkingQueueForgotten,
    ParkingQueueNamed,
    QueueUnparked,
    Relocated,
    Relocating,
    TermNeeded,
)
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.records import JournalEntry, Record
from dispatcher.core.recovery.journal_replay import JournalReplay


class ParkingReplay:
    """By parking queue. The entries are in `journal`, of which this reads what it leaves out."""

    def __init__(self, journal: JournalReplay) -> None:
        self.journal = journal
        self.begin_again()

    def begin_again(self) -> None:
        self.consumers: dict[QueueId, str] = {}  # whose groups are parked there
        self.forgotten: set[QueueId] = set()  # those that were deleted, as far as the journal goes back
        self.routes: dict[QueueId, dict[bytes, None]] = {}  # groups that go there
        #: Originals that are there, by group id; part of a group's may be counted under the group itself.
        self.counts: dict[QueueId, Counter[bytes | None]] = {}
        self.since_ms: dict[QueueId, dict[bytes, int]] = {}  # since when groups that go there wait
        self.terms: dict[QueueId, dict[bytes, int]] = {}  # copies from before that term are void

    def read(self, record: Record) -> None:
        match record:
            case Relocating():
                self.journal.open(record)
            case Relocated():
                entry = self.journal.take_out((record.inbound, record.arrival))
                if isinstance(entry, Relocating):
                    self.journal.end(entry)
                    self._moved(entry)
            case ParkingQueueNamed():
                self.consumers[record.queue] = record.consumer
                self.forgotten.discard(record.queue)
            case ParkingQueueForgotten():
                self.consumers.pop(record.queue, None)
                self.forgotten.add(record.queue)
                self._clear(record.queue)
            case GroupParked():
                self._parked(record)
            case QueueUnparked():
                self._clear(record.queue)
            case TermNeeded():
                self.terms.setdefault(record.queue, {})[record.copy] = record.term

    def _parked(self, record: GroupParked) -> None:
        self.counts.setdefault(record.queue, Counter())[record.group] += record.count
        if record.group is not None:
            self.routes.setdefault(record.queue, {})[record.group] = None
            if record.since_ms:
                known = self.since_ms.setdefault(record.queue, {})
                known[record.group] = min(known.get(record.group, record.since_ms), record.since_ms)

    def _clear(self, queue: QueueId) -> None:
        self.routes.pop(queue, None)
        self.counts.pop(queue, None)
        self.since_ms.pop(queue, None)
        self.terms.pop(queue, None)

    def opened(self, entry: JournalEntry) -> None:
        """It has been read from its parking queue."""
        self.terms.get(entry.inbound, {}).pop(entry.fingerprint, None)

    def _moved(self, entry: Relocating) -> None:
        """The copy is in its parking queue."""
        self.counts.setdefault(entry.target, Counter())[entry.group] += 1
        if entry.term:
            self.terms.setdefault(entry.target, {})[entry.copy] = entry.term

    def ended(self, entry: JournalEntry) -> None:
        if entry.inbound in self.counts:
            counts = self.counts[entry.inbound]
            counts[entry.group] -= 1
            if entry.group is not None and not counts[entry.group]:  # its next messages are newer
                self.since_ms.get(entry.inbound, {}).pop(entry.group, None)
