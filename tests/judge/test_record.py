"""The consumers' own records: everything that was written is read, after a kill -9 too."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.judge.record import LifeRecord, MessageKey, RecordWriter
from tests.waiting import wait_until

_WRITES_UNTIL_KILLED = """
import sys
from pathlib import Path
from dispatcher.judge.record import MessageKey, RecordWriter
writer = RecordWriter(Path(sys.argv[1]))
number = 0
while True:
    writer.started("i", MessageKey("q", "group", 0, number), number + 1, number + 1, 1, 1)
    writer.ended("i", number + 1)
    number += 1
"""
KEY = MessageKey("q", "a%20b", 2, 7, "p1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.record"


def test_what_was_recorded_is_read_while_the_file_grows(file: Path) -> None:
    reader = LifeRecord(file)
    assert reader.read() == []
    writer = RecordWriter(file)
    writer.ready()
    writer.started("i", KEY, 3, 4, 2, 1)
    assert reader.read() == []
    assert reader.is_ready
    assert not reader.has_joined
    assert reader.incarnations.keys() == {"i"}
    writer.welcomed("i", 1)
    writer.ended("i", 3, outcome="applied")
    (handling,) = reader.read()
    assert reader.has_joined
    assert (handling.life, handling.message) == ("c", KEY)
    assert (handling.seq, handling.group_seq, handling.epoch, handling.attempt) == (3, 4, 2, 1)
    assert (handling.outcome, handling.failed) == ("applied", False)
    assert handling.end is not None
    assert handling.start <= handling.end
    assert reader.handlings == [handling]
    writer.close()


def test_what_failed_was_retried_or_cancelled_says_so(file: Path) -> None:
    writer = RecordWriter(file)
    for seq in (1, 2, 3):
        writer.started("i", KEY, seq, seq, 1, 1)
    writer.ended("i", 1, failed=True)
    writer.ended("i", 2, failed=True)
    writer.retried("i", 2)
    writer.cancelled("i", 3)
    writer.close()
    failed, retried, cancelled = LifeRecord(file, by_incarnation=True).handlings
    assert failed.failed
    assert failed.life == "c/i"
    assert (retried.failed, retried.end) == (False, None)
    assert cancelled.cancelled is not None
    assert cancelled.end is None


def test_a_line_that_is_cut_off_waits_for_its_end(file: Path) -> None:
    file.write_bytes(b"started 5.0 i 1 1 1 1 q g 0 1 p\nended 6.0 i 1 appl")
    reader = LifeRecord(file)
    assert [handling.end for handling in reader.handlings] == [None]
    with file.open("ab") as out:
        out.write(b"ied\n")
    assert [(handling.end, handling.outcome) for handling in reader.read()] == [(6.0, "applied")]


def test_a_kill_loses_nothing_that_was_recorded(file: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", _WRITES_UNTIL_KILLED, str(file)])
    try:
        wait_until(lambda: file.exists() and file.stat().st_size > 100_000, what="100 kB of records")
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    reader = LifeRecord(file)
    ended = [handling for handling in reader.handlings if handling.end is not None]
    assert [handling.message.number for handling in ended] == list(range(len(ended)))
    assert len(reader.handlings) - len(ended) in (0, 1)
