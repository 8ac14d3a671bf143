"""A report's or stream's folder is one command's alone, also when a killed one's Java process still lives."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession

from dispatcher.pipeline.own_folder import note_java
from dispatcher.pipeline.report_folder import LOCK, report_folder
from dispatcher.pipeline.session import java_process
from tests.waiting import wait_until


def _waits(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_name != "_await_java":
        frame = frame.f_back
    return frame is not None


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


def test_the_process_that_writes_is_noted_until_it_lets_go(spark: SparkSession, tmp_path: Path) -> None:
    with report_folder(tmp_path) as folder:
        folder.note_writer(spark)
        assert (tmp_path / LOCK).read_text() == f"{java_process(spark)}\n"
    assert (tmp_path / LOCK).read_text() == ""
