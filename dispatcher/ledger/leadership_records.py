"""The ledger of all leaderships, written from their notes. Runs in a process of its own (`writer_process`).

A store that is slow or full stops this process only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

from dispatcher.ledger.backfill import Backfill
from dispatcher.ledger.files import BYTES_PER_ROW, FileWriter, day_of
from dispatcher.ledger.leadership_header import LeadershipHeader
from dispatcher.ledger.retention import Retention
from dispatcher.ledger.rows import columns
from dispatcher.ledger.schema import ENDED, NO_ROOM
from dispatcher.ledger.store import FAILURES, Store, first_line
from dispatcher.ledger.tracker import Tracker
from dispatcher.ledger.wire import NoteDecoder, decode_journal
from dispatcher.settings import LedgerSettings

#: How many records are made into columns at a time.
ROWS_PER_BATCH: Final = 2_000

#: What the dispatcher must know: lane, records written, records lost, why (empty: none were), and when a file
#: was written the leadership's number with the last record, the messages noted and the time there.
Report = tuple[str, int, int, str, tuple[int, int, int, int] | None]
#: What a note has of a leadership whose beginning is in other files: the last record there, since when there
#: is nothing, now, and how many messages' notes were lost.
RestartPoint = tuple[int, int, int, int]


class LeadershipRecords:
    """One leadership's records."""

    def __init__(self, header: LeadershipHeader, store: Store, decoder: NoteDecoder) -> None:
        self.lane = header.lane
        self.is_over = False
        self.noted = 0
        self.until_us = header.time_us  # of the last note
        self.last_commit = 0  # all up to that one are told of
        self._former = header.lane, header.former_epoch
        self._backfill: Backfill | None = None
        self._decoder = decoder
        self._store, self._tracker = store, Tracker(header)
        self.file = FileWriter(store, lane=header.lane, writer=header.writer, lane_epoch=header.lane_epoch)

    def resume(self, header: LeadershipHeader, restart: RestartPoint) -> None:
        """The process that wrote before is gone, with all that it had in no file."""
        ordinal, since_us, self.until_us, count = restart
        with contextlib.suppress(*FAILURES):  # else the dispatcher knows nearly as much
            ordinal = max(ordinal, self._store.last_ordinal(header.writer))
        if ordinal:
            self._tracker.rows.clear()  # its start is there
            self.file.leave_out(ordinal, count)
        self._tracker.lost(since_us, self.until_us, count, header.consumers, ENDED)

    def note(self, act: str, arguments: tuple[Any, ...], noted: int) -> None:
        """Take in a note, as `NoteRecorder` wrote it."""
        tracker, decoder, self.noted = self._tracker, self._decoder, noted
        self.until_us = arguments[1] if act in ("decided", "lost") else arguments[0]
        match act:
            case "arrived":
                tracker.arrived(arguments[0], decoder.arrivals(*arguments))
            case "decided":
                former_us, decided_us, committed_us, effects, commit = arguments
                tracker.decided(former_us, decided_us, committed_us, decoder.effects(effects))
                self.last_commit = commit or self.last_commit
            case "journal":
                self._read_journal(*arguments[1:])
            case "confirmed":
                tracker.confirmed(*arguments)
            case "sampled":
                tracker.sampled(*arguments)
            case "changed":
                tracker.changed(*arguments)
            case "lost":
                decoder.forget()
                since_us, until_us, count, known = arguments
                tracker.lost(since_us, until_us, count, decoder.in_hand(known), NO_ROOM)
            case "end":
                self.add_backfill(arguments[0])
                self.gather(arguments[0])
                tracker.end(*arguments)
                self.is_over = True

    @property
    def waiting(self) -> int:
        """Records that are not in columns yet."""
        return len(self._tracker.settled) + len(self._tracker.rows)

    def gather(self, now_us: int) -> None:
        """Make columns of what there is. A leadership's first record is a row, and so is its last, which
        `note` lets come last."""
        tracker, names = self._tracker, self._tracker.names
        rows, tracker.rows = tracker.rows, []
        for start in range(0, len(rows), ROWS_PER_BATCH):
            self.file.add(columns(rows[start : start + ROWS_PER_BATCH]), now_us)
        settled, tracker.settled = tracker.settled, []
        for start in range(0, len(settled), ROWS_PER_BATCH):
            found, closed = names.settled(settled[start : start + ROWS_PER_BATCH])
            self.file.add(found, now_us)
            for message in closed:
                tracker.closed(now_us, message)

    def _read_journal(
        self, commits: list[tuple[int, Any]], is_whole: bool, incarnations: dict[int, tuple[str, str]]
    ) -> None:
        if self._backfill is None:
            self._backfill = Backfill(self._tracker.names, incarnations)
        for number, records in commits:
            self._backfill.read(number, decode_journal(records))
        self._backfill.is_whole = is_whole

    def add_backfill(self, now_us: int) -> None:
        """Once: what the former leader's files don't have, where there are any. They are looked for with the
        first file, for one that was just killed is still being written of."""
        backfill, (lane, epoch) = self._backfill, self._former
        if backfill is None or not backfill.is_whole or epoch is None:
            return
        self._backfill = None
        with contextlib.suppress(*FAILURES):
            if (former := self._store.last_of(lane, epoch)) is not None:
                self._tracker.rows += backfill.rows(now_us, former)

    def add_open(self) -> None:
        """Messages and hand-overs that have not ended get their records."""
        self._tracker.rows += self._tracker.open_rows()


class LedgerRecords:
    """Every leadership's, by the numbers in their notes."""

    def __init__(self, store: Store, settings: LedgerSettings, report: Callable[[Report], None]) -> None:
        self._store, self._settings, self._report = store, settings, report
        self._rows_max = max(1, settings.memory_bytes // 2 // BYTES_PER_ROW)
        self._retention = Retention(store, settings)
        self._leaderships: dict[int, LeadershipRecords] = {}

    def note(self, number: int, act: str, arguments: tuple[Any, ...], noted: int) -> None:
        """Take in a note; one from before this process began says nothing to it."""
        if act == "begin":
            known, in_hand, restart = arguments
            decoder = NoteDecoder(known[3])
            header = LeadershipHeader(*known)._replace(consumers=decoder.in_hand(in_hand))
            records = self._leaderships[number] = LeadershipRecords(header, self._store, decoder)
            if restart is not None:
                records.resume(header, restart)
                records.noted = noted
            return
        if number not in self._leaderships:
            return
        records = self._leaderships[number]
        records.note(act, arguments, noted)
        if records.waiting >= ROWS_PER_BATCH:
            self._gather(number)

    def look(self, now_us: int) -> None:
        """Write the files that are due, and delete what must go."""
        for number, records in list(self._leaderships.items()):
            begun_us = records.file.begun_us
            if begun_us is None:
                self._gather(number)
                continue
            is_old = (now_us - begun_us) // 1_000 >= self._settings.file_age_ms
            if is_old or records.is_over or day_of(begun_us) != day_of(now_us):
                self._close(number)
        self._retention.look(time.time())

    def close(self) -> None:
        """Write everything; nothing follows."""
        for number in list(self._leaderships):
            self._close(number)

    def _gather(self, number: int) -> None:
        records = self._leaderships[number]
        records.gather(now_us())
        full = sum(each.file.rows for each in self._leaderships.values()) >= self._rows_max
        if full or records.file.rows >= self._settings.file_rows:
            self._close(number)

    def _close(self, number: int) -> None:
        """Write the file with all that is known by now."""
        records = self._leaderships[number]
        if not records.is_over:
            records.add_backfill(now_us())
        records.gather(now_us())
        records.add_open()
        records.gather(now_us())
        count = records.file.rows
        try:
            self._retention.added(records.file.close(records.last_commit))
        except FAILURES as problem:
            self._report((records.lane, 0, count, first_line(problem), None))
        else:
            reached = (number, records.file.last, records.noted, records.until_us)
            self._report((records.lane, count, 0, "", reached))
        if records.is_over:
            del self._leaderships[number]


def now_us() -> int:
    return time.time_ns() // 1_000
