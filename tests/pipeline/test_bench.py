"""The generated ledger of `bench.pipeline` holds what it says, and the run finds it: all of it, no more."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from bench.pipeline import by_duckdb
from bench.pipeline.__main__ import differences
from bench.pipeline.ledger import LANES, make_ledger
from bench.pipeline.processes import spend
from dispatcher.pipeline.gaps import Window
from tests.pipeline.conftest import Everything, run_pipeline

#: Lanes with records within a part of time, and before it or after it.
CUT = (
    *LANES, "busy", "traffic", "skew", "shares", "starved", "told-again", "days", "no-ledger", "readers-back",
)  # fmt: skip


def test_planted_faults_are_found_and_nothing_else(everything: Everything) -> None:
    made, folder = everything.made, everything.report.folder
    assert {rule for _, _, rule, _ in made.violations} == {"order", "overlap"}
    assert set(made.gaps) == {"ordinals", "no_end", "no_ledger"}
    assert differences(folder, made) == []
    # What is not planted would be told.
    other = made._replace(violations=set(sorted(made.violations)[1:]), gaps=made.gaps + made.gaps)
    unplanted, gaps, *_ = differences(folder, other)
    assert unplanted.startswith("1 violations not planted, as ('billing',")
    assert gaps.startswith("gaps: ")


def test_duckdb_makes_the_same_tables_by_sql_of_its_own(everything: Everything, tmp_path: Path) -> None:
    report, database = everything.report.folder, tmp_path / "tables"
    by_duckdb.make(everything.origin, database)
    assert by_duckdb.differences(report, database) == []
    assert by_duckdb.violation_differences(report, database) == []
    # A cell that differs is told.
    with duckdb.connect(str(database)) as engine:
        engine.execute("update hot_groups set messages = messages + 1 where rank = 1 and lane = 'orders'")
        engine.execute("update lane_stats set waits = [1000000000 + x for x in waits] where lane = 'torn'")
    found = by_duckdb.differences(report, database)
    assert [line.partition(":")[0] for line in found] == ["lane_stats", "hot_groups"]


@pytest.mark.slow
def test_duckdb_makes_the_same_tables_of_a_part_of_time(
    spark: SparkSession, everything: Everything, tmp_path: Path
) -> None:
    """Leaderships, hand-overs and stays in parking queues are cut by its ends."""
    since, until = datetime(2026, 3, 1, 14, tzinfo=UTC), datetime(2026, 11, 22, 23, 59, 52, tzinfo=UTC)
    (tmp_path / "ledger").mkdir()
    for lane in (f"lane={name}" for name in CUT):
        (tmp_path / "ledger" / lane).symlink_to(everything.origin / lane)
    window = Window(*(int(each.timestamp()) * 1_000_000 for each in (since, until)))
    report = run_pipeline(spark, tmp_path, window).folder
    by_duckdb.make(tmp_path / "ledger", tmp_path / "tables", since, until)
    assert by_duckdb.differences(report, tmp_path / "tables") == []


def test_a_ledger_too_small_for_its_faults_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lane orders is too small"):
        make_ledger(tmp_path, 1_000, 10_000, planted=100)


def test_the_stages_of_a_run_are_told_without_their_estimates() -> None:
    lines = (
        "starting Java and Spark: 4.1 s",
        "hand-overs: 8.0 s, about 2 min more",
        "summary: 1.0 s",
        "else",
    )
    said = spend([sys.executable, "-c", f"print({chr(10).join(lines)!r})"])
    assert said.stderr.splitlines() == [lines[0], "hand-overs: 8.0 s", lines[2]]
