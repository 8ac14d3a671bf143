"""What is shown while Spark works: a bar on a real terminal, and one line when a stage is over."""

from __future__ import annotations

import contextlib
import itertools
import os
import pty
import threading

import pytest
from pyspark.sql import SparkSession

from dispatcher.pipeline.ledger_files import Found, LedgerFile
from dispatcher.pipeline.progress import StageProgress, rough
from dispatcher.pipeline.run import stage_shares
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


def test_what_is_left_is_estimated_from_what_the_stages_before_took(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = itertools.accumulate([100.0, 0.0, 3.0, 1.0, 5.0, 1.0, 1.0, 300.0, 400.0])
    stage = StageProgress(spark, {"one": 0.1, "two": 0.1, "three": 0.8}, now_s.__next__)
    for name in ("one", "two", "unknown", "three"):
        with stage(name):
            pass
    assert capsys.readouterr().err.splitlines() == [
        "one: 3.0 s, about 27 s more", "two: 5.0 s, about 36 s more", "unknown: 1.0 s, about 44 s more",
        "three: 400.0 s",
    ]  # fmt: skip
    assert [rough(seconds) for seconds in (0.2, 89.4, 90, 400)] == ["1 s", "89 s", "2 min", "7 min"]


def test_every_stage_of_a_run_has_its_share() -> None:
    found = Found("", [], [], [])
    many = found._replace(files=[LedgerFile("", "", "", "", 1, 1, 10**6)])
    few, others = stage_shares(found), stage_shares(many)
    assert few.keys() == others.keys()
    assert few["order audit"] < others["order audit"]
    for shares in few, others:
        assert sum(shares.values()) == pytest.approx(1, abs=0.02)


def _work(spark: SparkSession) -> bool:
    return spark.range(0, 400_000, numPartitions=8).selectExpr("sum(hash(id))").count() == 1
