"""`dispatcher pipeline run` as people start it: one line a stage, the verdict, and what it refuses."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.errors import ConfigurationError
from dispatcher.nodes.java import ensure_java
from dispatcher.pipeline.class_archive import class_archive
from dispatcher.pipeline.ledger_reading import read_records
from dispatcher.pipeline.plan_file import read_plan
from dispatcher.pipeline.report_folder import report_folder
from dispatcher.pipeline.run import clear_errors, look
from dispatcher.pipeline.summary import as_text
from tests.pipeline.conftest import EVERYTHING, run_pipeline
from tests.pipeline.ledgers import Leader, Numbers, in_order

PROGRAM = "from dispatcher.cli import main; main()"
CLASSES = "all that Java has loaded"
#: Java, but what takes it twenty seconds at its end (`test_class_archive` has Java itself do it).
JAVA = """#!/bin/bash
for each in "$@"; do
    case $each in -XX:ArchiveClassesAtExit=*) file=${{each#*=}} ;; *) given+=("$each") ;; esac
done
{java} "${{given[@]}}" || exit
[ -z "$file" ] || printf %s "{classes}" > "$file"
"""
WRITE = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from dispatcher.pipeline.plan_file import PlanFile, PlannedMove, write_plan
from dispatcher.pipeline.report_folder import ReportFolder

folder = Path(sys.argv[1])
ReportFolder(folder).finish({"unit": "\\u00b5s"})
moves = [PlannedMove("gr\\u00f6\\u00dfe", None, "c")]
write_plan(folder / "plan.json", {}, PlanFile("orders", None, datetime.now(UTC), moves))
"""


def ledger(folder: Path, *, swapped: bool) -> Path:
    leader, numbers = Leader(folder), Numbers()
    hands = [numbers.number(each) for each in in_order("g", 3)]
    if swapped:
        hands[0].arrival, hands[1].arrival = 2, 1
    leader.hand(*hands)
    leader.end()
    return folder


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "pipeline", "run", *arguments],
        capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)  # a start of Java alone takes long on a busy machine
def test_a_violation_is_told_by_the_verdict_and_the_exit_code(tmp_path: Path) -> None:
    report, java = tmp_path / "größe", java_that_writes(tmp_path / "java")
    found = run(
        "--input", str(ledger(tmp_path / "ä", swapped=True)), "--output", str(report), "--master", "local[1]",
        "--since", "2026-11-22T23:59", "--until", "2026-11-22T23:59:50.002",
        LC_ALL="C", TZ="America/New_York", JAVA_HOME=str(java),
        XDG_CACHE_HOME=str(started_once(tmp_path / "cache", java)),
    )  # fmt: skip
    assert found.returncode == 1, found.stderr
    lines = found.stderr.splitlines()
    stages = [line.partition(":")[0] for line in lines]
    assert stages[:3] == ["starting Java and Spark", "reading leaderships", "hand-overs"]
    assert sorted(stages[3:6]) == ["lifecycle", "order audit", "statistics"]  # at the same time
    assert sorted(stages[6:-2]) == ["cost model", "fairness", "hot groups and stalls"]
    assert stages[-2:] == ["summary", "keeping Spark classes for later starts"]
    assert ["about" in line for line in lines] == [False, *[True] * 8, False, False], "what is left"
    (classes,) = (tmp_path / "cache").glob("*/spark-*.jsa")
    assert classes.read_text() == CLASSES
    *_, violation, verdict = found.stdout.splitlines()
    assert violation.startswith(
        "out of order: lane orders, group g: arrival 1 of in to c-i1 (seq 2) was handed"
    )
    assert verdict == "Verdict: VIOLATED in 1 group (kept in 0, unknown for 0)"
    summary = json.loads((report / "summary.json").read_text())
    assert summary["window"]["until"] == "2026-11-22T23:59:50.002000+00:00"
    assert summary["lanes"]["orders"]["hand_overs"] == 2  # the third ended later


def started_once(cache: Path, java: Path) -> Path:
    """A user's cache in which the next run keeps Spark's classes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(java))
        patch.setenv("XDG_CACHE_HOME", str(cache))
        with class_archive(is_of_use=True, may_make=True):
            return cache


def java_that_writes(home: Path) -> Path:
    """A home of Java whose process writes the file for its classes at once."""
    ensure_java(print)
    own = os.environ.get("JAVA_HOME")
    real = Path(own, "bin/java") if own else Path(shutil.which("java") or "")
    (home / "bin").mkdir(parents=True)
    (home / "lib").symlink_to(real.resolve().parents[1] / "lib")
    program = home / "bin" / "java"
    program.write_text(JAVA.format(java=real.resolve(), classes=CLASSES))
    program.chmod(0o755)
    return home


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["pipeline", "run", *arguments])
    assert result.exit_code in (1, 2)
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def test_a_ledger_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    output = ("--output", str(tmp_path / "report"))
    missing, empty = tmp_path / "none", tmp_path / "empty"
    empty.mkdir()
    assert f"{missing}: there is no such directory" in refusal("--input", str(missing), *output)
    assert f"{empty}: has no files of a ledger" in refusal("--input", str(empty), *output)
    assert not (tmp_path / "report").exists()
    within = ledger(tmp_path / "ledger", swapped=False) / "report"
    said = refusal("--input", f"file://{tmp_path / 'ledger'}", "--output", str(within))
    assert "lies within the ledger" in said
    assert not within.exists()


def test_a_file_damaged_inside_and_a_report_in_use_are_one_line(spark: SparkSession, tmp_path: Path) -> None:
    (file,) = ledger(tmp_path / "ledger", swapped=False).rglob("*.parquet")
    with report_folder(tmp_path / "report"), pytest.raises(ConfigurationError, match="another run writes"):
        run_pipeline(spark, tmp_path)
    content = bytearray(file.read_bytes())
    content[4:600] = bytes(596)
    file.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        run_pipeline(spark, tmp_path)
    (line,) = refused.value.problems
    assert line.startswith(f"{file}: can't be read: it is damaged, or was deleted meanwhile")
    assert not (tmp_path / "report" / "summary.json").exists()
    found = look(str(tmp_path / "ledger"), EVERYTHING)
    file.unlink()
    with pytest.raises(ConfigurationError, match="was deleted meanwhile; run again"), clear_errors():
        read_records(spark, str(tmp_path / "ledger"), found)


def test_files_are_written_in_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    values = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(tmp_path)], env=os.environ | values, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "summary.json").read_bytes())["unit"] == "µs"
    assert [each.group for each in read_plan(tmp_path / "plan.json").moves] == ["größe"]


def test_a_ledger_in_which_nothing_was_handed_over(spark: SparkSession, tmp_path: Path) -> None:
    strange = tmp_path / "100%41 of [a] *"  # what URLs and patterns have other ideas of
    Leader(strange / "ledger").end()
    report = run_pipeline(spark, strange)
    assert [each.name for each in tmp_path.iterdir()] == [strange.name]
    assert as_text(report.summary).splitlines()[-1] == "Verdict: nothing to judge: no group was handed over"


def test_a_time_is_a_time(tmp_path: Path) -> None:
    both = ("--input", str(tmp_path), "--output", str(tmp_path / "report"))
    assert "'soon' is neither a time" in refusal(*both, "--since", "soon")
    for text in "0001-01-01", "9999-12-31", "9999999999h", "99999999999999999h":
        assert text in refusal(*both, "--until", text)
    assert "must be later than --since" in refusal(*both, "--since", "2026-01-02", "--until", "2026-01-01")


def test_without_java_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ledger(tmp_path / "ledger", swapped=False)
    both = ("--input", str(folder), "--output", str(tmp_path / "report"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert f"JAVA_HOME: there is no {tmp_path}/none/bin/java" in refusal(*both)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Spark needs Java 17 or newer" in refusal(*both)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigurationError, match="has other things in it"), report_folder(tmp_path):
        pass
    busy = tmp_path / "busy"
    with report_folder(busy), (busy / ".lock").open() as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (
            pytest.raises(ConfigurationError, match="another run writes its report there"),
            report_folder(busy),
        ):
            pass
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="can't be written to"), report_folder(tmp_path / "file"):
        pass
