"""The consumers' own records: everything that was written is read, after a kill -9 too."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from dispatcher.demo.records import HandlingRecorder, RecordReader
from dispatcher.demo.table import ApplyOutcome
from tests.waiting import wait_until

_WRITES_UNTIL_KILLED = """
import sys
from pathlib import Path
from dispatcher.demo.records import HandlingRecorder
from dispatcher.demo.table import ApplyOutcome
recorder = HandlingRecorder(Path(sys.argv[1]))
number = 0
while True:
    recorder.begin(number, b"group", number + 1, 1, 1)
    recorder.end(number + 1, ApplyOutcome.APPLIED)
    number += 1
"""


def test_what_was_recorded_is_read_while_the_file_grows(tmp_path: Path) -> None:
    file = tmp_path / "records"
    reader = RecordReader("c", file)
    assert reader.read() == []
    recorder = HandlingRecorder(file)
    recorder.ready()
    recorder.begin(7, b"\xff a\n", 3, 2, 1)
    assert reader.read() == []
    assert reader.is_ready
    assert not reader.has_joined
    recorder.joined()
    recorder.end(3, ApplyOutcome.APPLIED)
    (handling,) = reader.read()
    assert reader.has_joined
    assert (handling.number, handling.group, handling.seq, handling.epoch) == (7, b"\xff a\n", 3, 2)
    assert handling.is_done
    assert handling.ended_ns is not None
    assert handling.begun_ns <= handling.ended_ns
    assert reader.handlings == [handling]
    recorder.close()


def test_what_was_taken_back_is_not_done(tmp_path: Path) -> None:
    recorder = HandlingRecorder(tmp_path / "records")
    recorder.begin(1, b"g", 1, 1, 1)
    recorder.end(1, ApplyOutcome.LOST)
    recorder.close()
    reader = RecordReader("c", tmp_path / "records")
    (handling,) = reader.read()
    assert not handling.is_done


def test_a_line_that_is_cut_off_waits_for_its_end(tmp_path: Path) -> None:
    file = tmp_path / "records"
    reader = RecordReader("c", file)
    file.write_bytes(b"begin 1 67 1 1 1 5\nend 1 appl")
    assert reader.read() == []
    with file.open("ab") as out:
        out.write(b"ied 9\n")
    assert [handling.ended_ns for handling in reader.read()] == [9]


def test_a_kill_loses_nothing_that_was_recorded(tmp_path: Path) -> None:
    file = tmp_path / "records"
    writer = subprocess.Popen([sys.executable, "-c", _WRITES_UNTIL_KILLED, str(file)])
    try:
        wait_until(lambda: file.exists() and file.stat().st_size > 100_000, what="100 kB of records")
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    reader = RecordReader("c", file)
    ended = reader.read()
    assert [handling.number for handling in ended] == list(range(len(ended)))
    assert len(reader.handlings) - len(ended) in (0, 1)
