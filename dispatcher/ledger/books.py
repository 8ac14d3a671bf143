"""The ledger of all leaderships, written from their notes. Runs in a process of its own (`scribe`).

A store that is slow or full stops this process only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

from dispatcher.ledger.beginning import Beginning
from dispatcher.ledger.files import BYTES_PER_ROW, FileWriter, day_of
from dispatcher.ledger.retention import Retention
from dispatcher.ledger.rows import columns
from dispatcher.ledger.schema import ENDED, NO_ROOM
from dispatcher.ledger.store import FAILURES, Store, first_line
from dispatcher.ledger.telling_again import TellingAgain
from dispatcher.ledger.tracker import Tracker
from dispatcher.ledger.wire import Decoder, decode_journal
from dispatcher.settings_parts import LedgerSettings

#: Records are made into columns so many at a time.
ROWS_PER_BATCH: Final = 2_000

#: What the dispatcher must know: lane, records written, records lost, why (empty: none were), and when a file
#: was written the leadership's number with the last record, the messages noted and the time there.
Report = tuple[str, int, int, str, tuple[int, int, int, int] | None]
#: What a note has behind which the beginning is in other files: the last record there, since when there is
#: nothing, now, and how many messages' notes were lost.
Again = tuple[int, int, int, int]


class Book:
    """One leadership's records."""

    def __init__(self, beginning: Beginning, store: Store, decoder: Decoder) -> None:
        self.lane = beginning.lane
        self.is_over = False
        self.noted = 0
        self.until_us = beginning.time_us  # of the last note
        self.last_commit = 0  # all up to that one are told of
        self._former = beginning.lane, beginning.former_epoch
        self._again: TellingAgain | None = None
        self._decoder = decoder
        self._store, self._tracker = store, Tracker(beginning)
        self.file = FileWriter(
            store, lane=beginning.lane, writer=beginning.writer, lane_epoch=beginning.lane_epoch
        )

    def begin_again(self, beginning: Beginning, again: Again) -> None:
        """The process that wrote before is gone, with all that it had in no file."""
        ordinal, since_us, self.until_us, count = again
        with contextlib.suppress(*FAILURES):  # else the dispatcher knows nearly as much
            ordinal = max(ordinal, self._store.last_ordinal(beginning.writer))
        if ordinal:
            self._tracker.rows.clear()  # its start is there
            self.file.leave_out(ordinal, count)
        self._tracker.lost(since_us, self.until_us, count, beginning.consumers, ENDED)

    def note(self, act: str, arguments: tuple[Any, ...], noted: int) -> None:
        """Take in a note, as `Bookkeeper` wrote it."""
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
                self.tell_again(arguments[0])
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
        if self._again is None:
            self._again = TellingAgain(self._tracker.names, incarnations)
        for number, records in commits:
            self._again.read(number, decode_journal(records))
        self._again.is_whole = is_whole

    def tell_again(self, now_us: int) -> None:
        """Once: what the former leader's files don't have, where there are any. They are looked for with the
        first file, for one that was just killed is still being written of."""
        again, (lane, epoch) = self._again, self._former
        if again is None or not again.is_whole or epoch is None:
            return
        self._again = None
        with contextlib.suppress(*FAILURES):
            if (former := self._store.last_of(lane, epoch)) is not None:
                self._tracker.rows += again.rows(now_us, former)

    def add_open(self) -> None:
        """What is not over gets its records."""
        self._tracker.rows += self._tracker.open_rows()


class Books:
    """Every leadership's, by the numbers in their notes."""

    def __init__(self, store: Store, settings: LedgerSettings, report: Callable[[Report], None]) -> None:
        self._store, self._settings, self._report = store, settings, report
        self._rows_max = max(1, settings.memory_bytes // 2 // BYTES_PER_ROW)
        self._retention = Retention(store, settings)
        self._books: dict[int, Book] = {}

    def note(self, number: int, act: str, arguments: tuple[Any, ...], noted: int) -> None:
        """Take in a note; one from before this process began says nothing to it."""
        if act == "begin":
            known, in_hand, again = arguments
            decoder = Decoder(known[3])
            beginning = Beginning(*known)._replace(consumers=decoder.in_hand(in_hand))
            book = self._books[number] = Book(beginning, self._store, decoder)
            if again is not None:
                book.begin_again(beginning, again)
                book.noted = noted
            return
        if number not in self._books:
            return
        book = self._books[number]
        book.note(act, arguments, noted)
        if book.waiting >= ROWS_PER_BATCH:
            self._gather(number)

    def look(self, now_us: int) -> None:
        """Write the files that are due, and delete what must go."""
        for number, book in list(self._books.items()):
            begun_us = book.file.begun_us
            if begun_us is None:
                self._gather(number)
                continue
            is_old = (now_us - begun_us) // 1_000 >= self._settings.file_age_ms
            if is_old or book.is_over or day_of(begun_us) != day_of(now_us):
                self._close(number)
        self._retention.look(time.time())

    def close(self) -> None:
        """Write everything; nothing follows."""
        for number in list(self._books):
            self._close(number)

    def _gather(self, number: int) -> None:
        book = self._books[number]
        book.gather(now_us())
        full = sum(each.file.rows for each in self._books.values()) >= self._rows_max
        if full or book.file.rows >= self._settings.file_rows:
            self._close(number)

    def _close(self, number: int) -> None:
        """Write the file with all that is known by now."""
        book = self._books[number]
        if not book.is_over:
            book.tell_again(now_us())
        book.gather(now_us())
        book.add_open()
        book.gather(now_us())
        count = book.file.rows
        try:
            self._retention.added(book.file.close(book.last_commit))
        except FAILURES as problem:
            self._report((book.lane, 0, count, first_line(problem), None))
        else:
            reached = (number, book.file.last, book.noted, book.until_us)
            self._report((book.lane, count, 0, "", reached))
        if book.is_over:
            del self._books[number]


def now_us() -> int:
    return time.time_ns() // 1_000
