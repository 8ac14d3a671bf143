"""Whatever is killed when: the tables are those of a stream that nobody disturbed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dispatcher.pipeline.live_folder import KEPT
from tests.pipeline.conftest import QUICK_JAVA, Everything
from tests.pipeline.planted_gaps import bad_files, killed
from tests.pipeline.planted_readers import disordered
from tests.pipeline.planted_violations import days, told_again
from tests.pipeline.streams import BATCH_FILES, catch_up, rows, violations_of
from tests.waiting import wait_until

#: Of a small ledger: several batches.
FEW_FILES = 6
PROGRAM = "from dispatcher.cli import main; main()"
#: Beside others a first batch takes long.
PATIENCE_S = 500.0
pytestmark = pytest.mark.timeout(1_500)


@contextlib.contextmanager
def stream(ledger: Path, live: Path) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable, "-c", PROGRAM, "pipeline", "stream", "--input", str(ledger), "--output", str(live),
        "--checkpoint", f"{live}-checkpoint", "--master", "local[1]", "--batch-files", str(FEW_FILES),
        "--forget-after", "3d", "--keep", "3d", "--trigger", "100ms",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "JDK_JAVA_OPTIONS": QUICK_JAVA}, start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            process.kill()


def java_of(live: Path) -> int:
    return int((live / ".lock").read_text())


def ignores(process: int, number: signal.Signals) -> bool:
    """What is for its process group, it leaves to the others."""
    (mask,) = re.findall(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{process}/status").read_text(), re.M)
    return bool(int(mask, 16) >> (number - 1) & 1)


def kill_when(live: Path, ledger: Path, when: Callable[[], bool], *, java: bool) -> tuple[str, str]:
    """Start a stream, kill -9 it or its Java process then, and return what it had said."""
    with stream(ledger, live) as process:
        wait_until(lambda: when() or process.poll() is not None, PATIENCE_S)
        assert ignores(java_of(live), signal.SIGTERM)
        os.kill(java_of(live) if java else process.pid, signal.SIGKILL)
        return process.communicate(timeout=PATIENCE_S)


@pytest.mark.slow
def test_kills_at_any_moment_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    ledger, live, checkpoint, other = (
        tmp_path / name for name in ("ledger", "live", "live-checkpoint", "other")
    )
    # Violations come in the first batch and in later ones, as do gaps and bad files.
    for plant in (days, killed, bad_files, told_again, disordered):
        plant(ledger)
    first, second = (live / "batches" / f"{number:012d}" for number in (0, 1))
    _, err = kill_when(live, ledger, (first.with_name(f".{first.name}")).exists, java=True)
    assert err.splitlines()[-1] == (
        "dispatcher: Spark's Java process is gone; start the stream again: it goes on where it was"
    )
    assert not first.exists()
    out, _ = kill_when(
        live, ledger, lambda: (second.with_name(f".{second.name}") / KEPT).exists(), java=False
    )
    assert first.exists()
    assert not second.exists()
    early = [json.loads(line) for line in out.splitlines()]
    told = {each["id"] for each in rows(live, f"alerts/{first.name}.parquet")}
    assert {each["id"] for each in early} > told > set(), "alerts do not wait for the batch's tables"
    catch_up(spark, ledger, live, FEW_FILES, checkpoint)
    assert not (live / "checkpoint").exists()
    catch_up(spark, ledger, other, FEW_FILES)
    assert len(list((live / "batches").iterdir())) == len(list((other / "batches").iterdir()))
    for table in ("current/lane_minutes.parquet", "current/consumers.parquet", "current/gaps.parquet"):
        assert rows(live, table)
        assert rows(live, table) == rows(other, table)
    assert violations_of(live) == violations_of(other)
    assert named(live) == named(other)
    assert {each["kind"] for each in named(live)} == {"violation", "gap", "file"}
    names = [each["id"] for each in rows(live, "alerts")]
    assert len(set(names)) == len(names)
    raised = {each["id"]: each["raised_at"].isoformat() for each in rows(live, "alerts")}
    assert {each["id"]: each["raised_at"] for each in early}.items() <= raised.items()


def test_sigterm_ends_it_after_the_batch_in_hand(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, live = tmp_path / "ledger", tmp_path / "live"
    for plant in (days, disordered):
        plant(ledger)
    first = live / "batches" / f"{0:012d}"
    in_hand = first.with_name(f".{first.name}")

    def end_it() -> bool:
        wait_until(in_hand.exists, PATIENCE_S)
        os.kill(os.getpid(), signal.SIGTERM)
        return first.exists()

    with ThreadPoolExecutor(1) as others:
        was_there = others.submit(end_it)
        catch_up(spark, ledger, live, 1)
    assert not was_there.result()
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == ["batch 0"]
    assert [*first.parent.iterdir()] == [first]


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
