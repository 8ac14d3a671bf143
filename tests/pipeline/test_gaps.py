"""What is missing is named, and makes a verdict unknown where it may hide something, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.gaps import Window
from dispatcher.pipeline.ledger_files import find_files
from dispatcher.pipeline.ledger_reading import within
from dispatcher.pipeline.summary import as_text
from tests.pipeline.conftest import Everything
from tests.pipeline.planted_gaps import CASES


@pytest.mark.parametrize("lane", CASES)
def test_a_verdict_is_unknown_only_where_something_may_be_hidden(everything: Everything, lane: str) -> None:
    report, expected = everything.report, everything.verdicts
    groups = {r["group"]: r["verdict"] for r in report.rows("groups") if r["lane"] == lane}
    assert groups == expected[lane]
    assert [r for r in report.rows("violations") if r["lane"] == lane] == []


def test_a_commit_is_no_time(everything: Everything) -> None:
    """Of hand-overs that were told again the journal knows commits, not times."""
    groups = [r for r in everything.report.rows("groups") if r["lane"] == "told-again"]
    first = {r["group"]: r["first_at"] for r in groups}
    assert first["moved"] > first["over"]
    assert {at.year for at in first.values() if at} == {2026}
    assert first["parked"] is None
    assert {r["last_at"].year for r in groups if r["last_at"]} == {2026}


def test_every_gap_has_its_name(everything: Everything) -> None:
    rows = [r for r in everything.report.rows("gaps") if r["lane"] in CASES]
    found = {(r["lane"], r["kind"]): r for r in rows}
    gaps = {key for key, r in found.items() if not r["is_boundary"]}
    assert gaps == {
        ("killed", "no_end"), ("told-in-part", "no_end"), ("missing-file", "ordinals"),
        ("return-missing", "ordinals"), ("no-ledger", "no_ledger"), ("dropped", "dropped"),
        ("bad", "ordinals"), ("ended", "dropped"), ("ended", "ordinals"),
    }  # fmt: skip
    missing = found["missing-file", "ordinals"]
    assert [missing["first_ordinal"], missing["last_ordinal"]] == [8, 10]
    assert (missing["until"] - missing["since"]).total_seconds() == pytest.approx(2, abs=0.1)
    assert found["told-again", "told_again"]["is_boundary"]
    assert found["boundaries", "begins"]["is_boundary"]
    assert found["boundaries", "goes_on"]["is_boundary"]
    for lane in ("twice", "told-by-both"):
        assert everything.report.summary["lanes"][lane]["hand_overs"] == 3


def test_files_that_can_not_be_read_are_each_one_line(everything: Everything) -> None:
    report = everything.report
    problems = {Path(r["path"]).name: r["problem"] for r in report.rows("files") if r["problem"]}
    assert {name: text.split(":")[0] for name, text in problems.items()} == {
        "8-00000008-000000000001.parquet": "is truncated or no Parquet file",
        "10-0000000a-000000000001.parquet": "has schema version 2, newer than 1",
        "10-0000000a-000000000002.parquet": "is empty",
        "theirs.parquet": "is a foreign Parquet file without a ledger's metadata, and left out",
        "notes.txt": "is no file of a ledger, and left out",
    }
    lines = as_text(report.summary).splitlines()
    assert sum(line.startswith("not read: ") for line in lines) == 5
    assert "remark: the folder of lane 007 has files of lane new-name (1): counted as that one's" in lines


def test_a_window_begins_with_its_first_instant_and_ends_before_its_last(spark: SparkSession) -> None:
    records = spark.range(5).withColumn("time", F.timestamp_micros("id"))

    def kept(since_us: int | None, until_us: int | None) -> list[int]:
        return [row["id"] for row in within(records, Window(since_us, until_us)).collect()]

    assert kept(1, 3) == [1, 2]
    assert kept(None, 3) == [0, 1, 2]
    assert kept(3, None) == [3, 4]
    assert kept(None, None) == [0, 1, 2, 3, 4]


def test_a_ledger_without_anything_to_read_is_refused(tmp_path: Path) -> None:
    def problems(path: str) -> str:
        with pytest.raises(ConfigurationError) as refused:
            find_files(path)
        return refused.value.problems[0]

    assert "there is no such directory" in problems(str(tmp_path / "none"))
    assert "has no files of a ledger" in problems(str(tmp_path))
    file = tmp_path / "lane=a" / "date=2026-11-22" / "1-00000000-000000000001.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    assert problems(str(tmp_path)).endswith("000000000001.parquet: is empty: its records are missing")
    assert "is no directory" in problems(str(file))
    assert "nosuch://bucket" in problems("nosuch://bucket")
