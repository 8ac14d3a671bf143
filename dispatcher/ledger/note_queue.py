"""The notes on their way to the process that writes the ledger: bounded, and the dispatcher never waits for
it. When there is no room, notes are dropped and counted. When there is room again, the first note says how
many records are missing and which consumer has which messages now: earlier state is no longer reliable.
"""

from __future__ import annotations

import marshal
import uuid
from collections import deque
from collections.abc import Callable
from itertools import count, islice
from typing import Any, Final, NamedTuple

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.lane import Lane
from dispatcher.core.model import MessageState, Original
from dispatcher.core.options import LaneOptions
from dispatcher.ledger import wire
from dispatcher.ledger.frames import VERSION
from dispatcher.ledger.leadership_header import LeadershipHeader, former_epoch, in_hand, options_shown
from dispatcher.ledger.recorder import Recorder

#: How many records of a journal are noted with one step: this takes some ms.
JOURNAL_PER_STEP: Final = 2_000
#: How often the inbound queues' backlogs are recorded while the lane does anything.
SAMPLE_US: Final = 1_000_000


class Reached(NamedTuple):
    """What of a leadership is in files."""

    ordinal: int  # of its last record there
    noted: int  # messages that its keeper had noted by then
    until_us: int


class NoteQueue:
    """A queue of notes from the event loop to a thread, with a maximum size in bytes.

    A note is made into bytes at once: now its objects are in the processor's caches.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._queue: deque[bytes] = deque()
        self._added = 0  # bytes, by the event loop
        self._taken = 0  # by the thread
        self._closed = False
        self.process = 1  # the how manieth process takes them

    def has_room(self) -> bool:
        return not self._closed and self._added - self._taken < self._bytes_max

    def add(self, number: int, act: str, arguments: tuple[Any, ...], noted: int) -> None:
        """Add a note of the leadership with this number; `noted`: how many messages it is about. Raises
        ValueError for values that are not plain."""
        note = marshal.dumps((number, act, arguments, noted), VERSION)
        self._added += len(note)
        self._queue.append(note)

    def take(self, size: int) -> list[bytes]:
        """The next notes, up to about that many bytes."""
        taken: list[bytes] = []
        while self._queue and size > 0:
            taken.append(self._queue.popleft())
            size -= len(taken[-1])
        return taken

    def done(self, notes: list[bytes]) -> None:
        """These are on their way."""
        self._taken += sum(map(len, notes))

    def close(self) -> None:
        """There is room for nothing any more, unless another process comes."""
        self._closed = True

    def open_again(self) -> None:
        """Another process reads them from now on; it knows nothing of earlier notes."""
        self._queue.clear()
        self._taken = self._added
        self.process += 1
        self._closed = False


class JournalReading:
    """A journal, part by part."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._commits, self._records = iter(snapshot.commits), iter(snapshot.records)
        self._left = len(snapshot.commits)
        #: Consumer and uuid, by number.
        self.incarnations = {n: (row.consumer, row.uuid) for n, row in snapshot.incarnations.items()}

    @property
    def is_read(self) -> bool:
        return not self._left

    def next(self, records_max: int) -> list[tuple[int, list[Any]]]:
        """Commits with at least that many records, as `wire` has them."""
        part, size = [], 0
        while size < records_max and (commit := next(self._commits, None)) is not None:
            number, length = commit
            part.append((number, wire.encode_journal(islice(self._records, length))))
            size, self._left = size + length, self._left - 1
        return part


class NoteRecorder(Recorder):
    """Writes the notes of one leadership. Belongs to the event loop."""

    _numbers = count(1)
    reads_kinds = True

    def __init__(
        self,
        lane: str,
        host: str,
        notes: NoteQueue,
        now_us: Callable[[], int],
        count_dropped: Callable[[int], None],
        reached: Callable[[int], Reached | None] = lambda number: None,
    ) -> None:
        self._name, self._host, self._notes = lane, host, notes
        self._number = next(self._numbers)
        self.now_us = now_us  # type: ignore[method-assign]
        self._count_dropped = count_dropped
        self._reached = reached
        self._process = notes.process
        self._noted = 0  # messages, each as often as it was noted
        self._counted_lost = (0, 0)  # messages in files; those noted later and counted lost
        self._lane: Lane | None = None
        self._ended = False
        self._returned: list[tuple[int, Original]] = []  # what recovery may know: looked at after its step
        self._former_us = 0  # when the latest step was decided
        self._sample_due_us = 0
        self._dropped = 0
        self._dropped_since_us = 0
        self._journal: JournalReading | None = None  # of the leadership before; None: all is told

    def began(self, lane: Lane, snapshot: Snapshot) -> None:
        self._lane, state = lane, lane.state
        options, policy = state.options, state.policy
        header = self._header = LeadershipHeader(
            self.now_us(), f"{state.lane_epoch}-{uuid.uuid4().hex[:8]}", self._name, state.lane_epoch,
            self._host, former_epoch(snapshot), state.lane_holds.is_paused, options_shown(options),
            options.parking_queues, state.stops_failed or not policy.keeps_owner, [],
        )  # fmt: skip
        self._process = self._notes.process
        self._notes.add(self._number, "begin", (tuple(header), self._known(), None), 0)
        if snapshot.complete and snapshot.commits and not options.handover:
            self._journal = JournalReading(snapshot)

    def changed(self, options: LaneOptions) -> None:
        self._add("changed", (self.now_us(), options_shown(options)), 1)

    def arrived(self, messages: list[Original]) -> None:
        now_us = self.now_us()
        new = [m for m in messages if type(m) is Original and not m.redelivered]
        if len(new) < len(messages):
            self._returned += [(now_us, m) for m in messages if type(m) is Original and m.redelivered]
        if new:
            self._add("arrived", (now_us, wire.encode_arrivals(new)), len(new))

    def decided(self, effects: Effects, decided_at_us: int, commit: int = 0) -> None:
        former_us, self._former_us = self._former_us, decided_at_us
        now_us = self.now_us()
        if self._returned:
            self._note_returned()
        if effects.records or effects.actions or effects.owners or effects.incarnations:
            count = len(effects.records)
            encoded = wire.encode_effects(effects)
            self._add("decided", (former_us, decided_at_us, now_us, encoded, commit), count)
        if now_us >= self._sample_due_us:
            self._sample(now_us)
        if self._journal is not None:
            self._read_on(JOURNAL_PER_STEP)

    def _read_on(self, records_max: int) -> None:
        """Tell some more of the former leader's journal. It is told as a whole or counts for nothing."""
        journal = self._journal
        if journal is None or self._process != self._notes.process or not self._notes.has_room():
            self._journal = None
            return
        self._go_on()
        part = journal.next(records_max)
        arguments = (self.now_us(), part, journal.is_read, journal.incarnations)
        self._notes.add(self._number, "journal", arguments, self._noted)
        if journal.is_read:
            self._journal = None

    def _note_returned(self) -> None:
        """Note those redelivered messages that wait as received."""
        returned, self._returned = self._returned, []
        for received_us, message in returned:
            if message.state is MessageState.WAITING:
                self._add("arrived", (received_us, wire.encode_arrivals([message])), 1)

    def confirmed(self, orders: list[Any]) -> None:
        if copies := wire.encode_confirmed(orders):
            self._add("confirmed", (self.now_us(), copies), len(copies))

    def ended(self, reason: str | None) -> None:
        if self._lane is None or self._ended:
            return
        while self._journal is not None:
            self._read_on(JOURNAL_PER_STEP)
        self._go_on()
        self._notes.add(self._number, "end", (self.now_us(), reason), self._noted)
        self._ended = True

    def _add(self, act: str, arguments: tuple[Any, ...], messages: int) -> None:
        if self._lane is None or self._ended:
            return
        if not self._notes.has_room():
            self._lose(messages)
            return
        self._go_on()
        self._noted += messages
        try:
            self._notes.add(self._number, act, arguments, self._noted)
        except ValueError:  # a bug of ours, over which no message may wait
            self._lose(messages)

    def _lose(self, messages: int) -> None:
        """Count the notes of this many messages as lost."""
        self._dropped_since_us = self._dropped_since_us or self.now_us()
        self._dropped += messages
        self._count_dropped(messages)

    def _known(self) -> list[Any]:
        assert self._lane is not None
        return wire.encode_in_hand(in_hand(self._lane))

    def _go_on(self) -> None:
        """Before the next note: say how many records are missing, if any are."""
        if self._process != self._notes.process:
            self._begin_again()
        elif self._dropped:
            arguments = (self._dropped_since_us, self.now_us(), self._dropped, self._known())
            self._notes.add(self._number, "lost", arguments, self._noted)
        self._dropped = self._dropped_since_us = 0

    def _begin_again(self) -> None:
        """Another process writes: whatever is in no file has come to nothing."""
        self._process = self._notes.process
        ordinal, noted, since_us = self._reached(self._number) or Reached(0, 0, self._header.time_us)
        lost = self._noted - noted
        behind, counted = self._counted_lost
        self._count_dropped(lost - (counted if behind == noted else 0))
        self._counted_lost = noted, lost
        restart = (ordinal, since_us, self.now_us(), lost + self._dropped)
        arguments = (tuple(self._header), self._known(), restart)
        self._notes.add(self._number, "begin", arguments, self._noted)

    def _sample(self, now_us: int) -> None:
        assert self._lane is not None
        self._sample_due_us = now_us + SAMPLE_US
        rows = [
            (i.name, i.waiting, i.in_flight, i.dispatched, i.spent, i.is_full())
            for i in self._lane.state.inbounds
        ]
        self._add("sampled", (now_us, rows), len(rows))
