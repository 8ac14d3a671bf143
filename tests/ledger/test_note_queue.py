"""From the core's effects to files without a process between: sizes, ages, and what finds no room."""

from __future__ import annotations

import json
import marshal
from pathlib import Path

from bench.ledger import Traffic
from dispatcher.ledger.leadership_records import LedgerRecords, Report, now_us
from dispatcher.ledger.note_queue import NoteQueue, NoteRecorder
from dispatcher.ledger.store import Store
from dispatcher.settings import LedgerSettings
from tests.ledger import reading

BATCH = 50
SECOND_US = 1_000_000


class Bench:
    """One lane's traffic, and its ledger in a folder."""

    def __init__(self, folder: Path, *, notes_bytes: int = 1 << 30, **settings: int) -> None:
        self.folder = folder
        self.dropped: list[int] = []
        self.reports: list[Report] = []
        self.notes = NoteQueue(notes_bytes)
        self.keeper = NoteRecorder("orders", "host", self.notes, now_us, self.dropped.append)
        keys = LedgerSettings(path=str(folder), **settings)
        self.books = LedgerRecords(Store(str(folder)), keys, self.reports.append)
        self.traffic = Traffic(self.keeper, BATCH)

    def write(self) -> None:
        """What the process does with what has been noted."""
        taken = self.notes.take(1 << 30)
        self.notes.done(taken)
        for note in taken:
            self.books.note(*marshal.loads(note))

    def run(self, messages: int) -> None:
        self.traffic.run(messages, rate=1_000_000_000)

    def files(self) -> list[int]:
        """How many records each file has."""
        return [reading.pq.read_metadata(path).num_rows for path in reading.files(self.folder)]


def test_a_file_is_full_after_so_many_records(tmp_path: Path) -> None:
    bench = Bench(tmp_path, file_rows=3_000)
    bench.run(10_000)
    bench.write()
    bench.books.close()
    *full, _ = bench.files()
    assert len(full) >= 2
    assert all(3_000 <= rows < 6_000 for rows in full)  # they are gathered 2,000 at a time


def test_a_file_is_written_when_it_is_old_enough(tmp_path: Path) -> None:
    bench = Bench(tmp_path, file_age_ms=5_000)
    bench.run(BATCH)
    bench.write()
    bench.books.look(now_us())
    bench.books.look(now_us() + 4 * SECOND_US)
    assert bench.files() == []
    bench.books.look(now_us() + 6 * SECOND_US)
    (rows,) = bench.files()
    assert rows > BATCH
    assert [report[:4] for report in bench.reports] == [("orders", rows, 0, "")]


def test_a_file_is_written_before_it_takes_too_much_memory(tmp_path: Path) -> None:
    bench = Bench(tmp_path, memory_bytes=1 << 20)
    bench.run(10_000)
    bench.write()
    assert len(bench.files()) > 1
    assert max(bench.files()) < 5_000


def test_what_finds_no_room_is_counted_and_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, notes_bytes=100_000)
    bench.run(5_000)
    assert sum(bench.dropped) > 0
    bench.write()
    dropped = sum(bench.dropped)
    bench.run(2 * BATCH)
    assert sum(bench.dropped) == dropped
    bench.keeper.ended(None)
    bench.write()
    bench.books.close()
    told = reading.one(reading.records(tmp_path, "records_dropped"))
    assert (told["messages"], told["reason"]) == (dropped, "no room")
    assert json.loads(told["detail"])["since_us"] < told["time"].timestamp() * SECOND_US
    later = [r for r in reading.records(tmp_path, "settled") if r["time"] > told["time"]]
    assert sum(r["dispatched_at"] is not None for r in later) == 2 * BATCH


def test_everything_that_ends_is_told_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(3_000)
    bench.keeper.ended("over")
    bench.write()
    bench.books.look(now_us())
    settled = reading.records(tmp_path, "settled")
    assert len({(r["inbound"], r["arrival_epoch"], r["arrival"]) for r in settled}) == len(settled) == 3_000
    by_group: dict[str, list[tuple[int, int]]] = {}
    for r in sorted(settled, key=lambda r: (r["epoch"], r["group_seq"])):
        by_group.setdefault(r["group"], []).append((r["arrival_epoch"], r["arrival"]))
    assert all(arrivals == sorted(arrivals) for arrivals in by_group.values())
    assert reading.records(tmp_path)[-1]["reason"] == "over"
