"""What is shown while Spark works: a bar on a real terminal, and one line when a stage is over."""

from __future__ import annotations

import contextlib
import os
import pty
import threading

import pytest
from pyspark.sql import SparkSession

from dispatcher.pipeline.progress import StageProgress
from tests.waiting import wait_until


def test_a_terminal_shows_a_bar_that_moves_and_is_gone_at_the_end(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ours, theirs = pty.openpty()
    shown = bytearray()

    def watch() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(ours, 4_096):
                shown.extend(part)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with os.fdopen(theirs, "w") as terminal, contextlib.redirect_stderr(terminal):
        stage = StageProgress(spark)
        with stage("counting"):
            wait_until(lambda: _work(spark) and b"of 8 tasks" in shown, what="the bar counts tasks")
    watcher.join()
    os.close(ours)
    text = shown.decode()
    assert "━" in text
    assert "\x1b[2K" in text  # the bar's line is cleared
    last = text.rstrip().splitlines()[-1]
    assert last.endswith(" s")
    assert "counting: " in last


def _work(spark: SparkSession) -> bool:
    return spark.range(0, 400_000, numPartitions=8).selectExpr("sum(hash(id))").count() == 1
