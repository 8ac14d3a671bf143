"""Whatever is killed when: the tables are those of a stream that nobody disturbed, and of the batch run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dispatcher.pipeline.live_folder import KEPT
from tests.pipeline.conftest import Everything
from tests.pipeline.streams import BATCH_FILES, catch_up, rows, violations_of
from tests.waiting import wait_until

PROGRAM = "from dispatcher.cli import main; main()"
#: Beside others a first batch takes long.
PATIENCE_S = 100.0
pytestmark = pytest.mark.timeout(300)


@contextlib.contextmanager
def stream(ledger: Path, live: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable, "-c", PROGRAM, "pipeline", "stream", "--input", str(ledger), "--output", str(live),
        "--checkpoint", f"{live}-checkpoint", "--master", "local[1]", "--batch-files", str(BATCH_FILES),
        "--forget-after", "3d", "--keep", "3d",
    ]  # fmt: skip
    process = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Most of the time goes into compiling what runs for a few batches.
        env={**os.environ, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def java_of(live: Path) -> int:
    return int((live / ".lock").read_text())


def kill_when(live: Path, ledger: Path, when: Callable[[], bool], *, java: bool) -> tuple[str, str]:
    """Start a stream, kill -9 it or its Java process then, and return what it had said."""
    with stream(ledger, live, "--trigger", "100ms") as process:
        wait_until(lambda: when() or process.poll() is not None, PATIENCE_S)
        os.kill(java_of(live) if java else process.pid, signal.SIGKILL)
        return process.communicate(timeout=PATIENCE_S)


@pytest.mark.slow
def test_kills_at_any_moment_change_nothing(everything: Everything, caught_up: Path, tmp_path: Path) -> None:
    ledger, live = everything.origin, tmp_path / "live"
    first, second = (live / "batches" / f"{number:012d}" for number in (0, 1))
    out, _ = kill_when(live, ledger, lambda: (first.with_name(f".{first.name}") / KEPT).exists(), java=False)
    early = [json.loads(line) for line in out.splitlines()]
    assert early, "alerts do not wait for the batch's tables"
    assert not first.exists()
    _, err = kill_when(live, ledger, (second.with_name(f".{second.name}")).exists, java=True)
    assert err.splitlines()[-1] == (
        "dispatcher: Spark's Java process is gone; start the stream again: it goes on where it was"
    )
    with stream(ledger, live, "--until-caught-up") as process:
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
    assert not (live / "checkpoint").exists()
    for table in ("current/lane_minutes.parquet", "current/consumers.parquet", "current/gaps.parquet"):
        assert rows(live, table) == rows(caught_up, table)
    assert violations_of(live) == violations_of(caught_up)
    assert named(live) == named(caught_up)
    names = [each["id"] for each in rows(live, "alerts")]
    assert len(set(names)) == len(names)
    raised = {each["id"]: each["raised_at"].isoformat() for each in rows(live, "alerts")}
    assert {each["id"]: each["raised_at"] for each in early}.items() <= raised.items()


def named(live: Path) -> list[dict[str, Any]]:
    return [{name: each[name] for name in ("id", "kind", "text")} for each in rows(live, "alerts")]


def test_a_batch_that_spark_did_not_note_is_not_made_again(
    everything: Everything, caught_up: Path, spark: SparkSession, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Killed after the rename, before Spark's commit, and before its alerts were printed."""
    live = tmp_path / "live"
    shutil.copytree(caught_up, live, symlinks=True)
    last = max((live / "batches").iterdir())
    (last / ".told").unlink()
    for note in (live / "checkpoint" / "commits").glob(f"*{int(last.name)}*"):
        note.unlink()
    before = [path.stat().st_mtime_ns for path in sorted(last.rglob("*")) if path.is_file()]
    catch_up(spark, everything.origin, live, BATCH_FILES)
    assert (live / "checkpoint" / "commits" / str(int(last.name))).exists()
    assert [
        p.stat().st_mtime_ns for p in sorted(last.rglob("*")) if p.is_file() and p.name != ".told"
    ] == before
    assert named(live) == named(caught_up)
    printed = [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()]
    assert printed == [each["id"] for each in rows(live, f"alerts/{last.name}.parquet")]
