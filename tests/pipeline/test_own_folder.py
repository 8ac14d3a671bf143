"""A report's or stream's folder is one command's alone, also when a killed one's Java process still lives."""

from __future__ import annotations

import linecache
import subprocess
import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.own_folder import note_java
from dispatcher.pipeline.page import open_report
from dispatcher.pipeline.report_folder import LOCK, finished_report, report_folder
from dispatcher.pipeline.session import java_process
from tests.page.reports import write_report
from tests.waiting import wait_until


def _waits(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_name != "_await_java":
        frame = frame.f_back
    return frame is not None


def _sleeps(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""
    return "time.sleep" in line


def test_who_comes_after_a_kill_waits_for_the_end_of_its_java_process(tmp_path: Path) -> None:
    former = subprocess.Popen([sys.executable, "-c", "input()", "org.apache.spark"], stdin=subprocess.PIPE)
    with (tmp_path / LOCK).open("a+") as lock:  # nobody clears it behind a kill
        note_java(lock, former.pid)
    ended = []

    def next_one() -> None:
        with report_folder(tmp_path):
            ended.append(former.poll())

    other = threading.Thread(target=next_one)
    other.start()
    assert former.stdin is not None
    wait_until(lambda: _waits(other) or ended, what="it waits")
    assert not ended
    former.stdin.close()
    former.wait()
    other.join()
    assert ended == [1]  # input() had nothing to read


def test_who_adds_to_a_report_waits_for_its_readers_but_not_for_a_run(tmp_path: Path) -> None:
    (write_report(tmp_path / "report") / LOCK).touch()
    outcomes: list[str] = []

    def add() -> None:
        try:
            with finished_report(tmp_path / "report"):
                outcomes.append("added")
        except ConfigurationError as refused:
            outcomes.append(str(refused))

    adds = threading.Thread(target=add)
    with open_report(tmp_path / "report"):
        adds.start()
        wait_until(lambda: _sleeps(adds) or outcomes, what="it waits")
        assert outcomes == []
    adds.join()
    with finished_report(tmp_path / "report") as folder:
        command = [sys.executable, "-c", "input()", "org.apache.spark"]
        writer = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert folder._lock is not None
        note_java(folder._lock, writer.pid)
        add()
        writer.communicate(b"\n")
    assert outcomes == ["added", f"{tmp_path / 'report'}: another run writes its report there: wait for it, "
                        "or name another directory"]  # fmt: skip


def test_the_process_that_writes_is_noted_until_it_lets_go(spark: SparkSession, tmp_path: Path) -> None:
    with report_folder(tmp_path) as folder:
        folder.note_writer(spark)
        assert (tmp_path / LOCK).read_text() == f"{java_process(spark)}\n"
    assert (tmp_path / LOCK).read_text() == ""
