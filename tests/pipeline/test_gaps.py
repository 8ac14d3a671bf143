"""What is missing is named, and makes a verdict unknown where it may hide something, and nowhere else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dispatcher.errors import ConfigurationError
from dispatcher.ledger.rows import arrow_schema, row
from dispatcher.pipeline.gaps import Window
from dispatcher.pipeline.ledger_files import find_files
from dispatcher.pipeline.summary import as_text
from tests.pipeline.conftest import Report, run_pipeline
from tests.pipeline.ledgers import MS, START_US, HandOver, Leader, Numbers, in_order

SECOND = 1_000 * MS
#: By group.
Verdicts = dict[str, str]
Cases = tuple[Report, dict[str, Verdicts]]


def killed(folder: Path) -> Verdicts:
    """Leader 7 was killed; leader 8 goes on, on a host whose clock is an hour behind."""
    numbers, leader = Numbers(), Leader(folder, "killed")
    goes_on, over = in_order("goes-on", 6), in_order("over", 2, first=10)
    held = HandOver("held", 20, "i2", dispatched=START_US + MS)
    known = HandOver("known", 21, "i2", dispatched=START_US + MS)
    late = START_US - 3_600 * SECOND
    for each in [*goes_on, *over, held, known]:
        numbers.number(each)
    for each in goes_on[3:]:
        each.dispatched, each.ended = each.dispatched + late - START_US, late + 10 * SECOND
    leader.hand(*goes_on[:3], *over)
    leader.tell(held.begun(), known.begun())
    leader.close()
    second = Leader(folder, "killed", 8, 7, late)
    known.ended = late + SECOND
    second.tell(known.over(by_another_leader=True))
    second.hand(*goes_on[3:])
    # It may have been settled before: another consumer has the group now.
    second.hand(numbers.number(HandOver("held", 22, "i3", dispatched=late + SECOND, ended=late + 2 * SECOND)))
    second.end()
    return {"goes-on": "kept", "over": "unknown", "held": "unknown", "known": "unknown"}


def missing_file(folder: Path) -> Verdicts:
    """Of three files the second one was deleted."""
    numbers, leader = Numbers(), Leader(folder, "missing-file")
    across, hidden = in_order("across", 6), in_order("hidden", 9, first=10)
    for each in across[3:]:
        each.dispatched, each.ended = each.dispatched + 2 * SECOND, START_US + 3 * SECOND
    for each in [*across, *hidden]:
        numbers.number(each)
    leader.hand(*across[:3], *hidden[:3])
    leader.close()
    for each in hidden[3:6]:
        each.dispatched, each.ended = each.dispatched + SECOND, START_US + SECOND + 100 * MS
    leader.hand(*hidden[3:6])
    leader.close()
    for each in hidden[6:]:
        each.dispatched, each.ended = each.dispatched + SECOND, START_US + 2 * SECOND
    leader.hand(*across[3:], *hidden[6:])
    leader.end()
    _, second, _ = sorted((folder / "lane=missing-file").rglob("*.parquet"))
    second.unlink()
    return {"across": "kept", "hidden": "unknown"}


def no_ledger(folder: Path) -> Verdicts:
    numbers, leader = Numbers(), Leader(folder, "no-ledger")
    hands = [numbers.number(each) for each in in_order("g", 4)]
    leader.hand(*hands[:2])
    leader.end()
    second = Leader(folder, "no-ledger", 9, 8, START_US + SECOND)
    for each in hands[2:]:
        each.dispatched, each.ended = START_US + 2 * SECOND, START_US + 3 * SECOND
    second.hand(*hands[2:], numbers.number(*in_order("new", 1, first=9, since=START_US + 2 * SECOND)))
    second.end()
    return {"g": "kept", "new": "unknown"}


def dropped(folder: Path) -> Verdicts:
    """Records found no room for a second; what is settled then has lost its name, but for its number."""
    numbers, leader = Numbers(), Leader(folder, "dropped")
    before, held = numbers.number(*in_order("before", 1)), numbers.number(*in_order("held", 1, first=9))
    leader.hand(before)
    leader.tell(held.begun())
    leader.close()
    leader.now_us = START_US + 2 * SECOND
    leader.tell(row(
        START_US + 2 * SECOND, "records_dropped", messages=5, reason="no room",
        detail=json.dumps({"since_us": START_US + SECOND}),
    ))  # fmt: skip
    leader.tell(row(START_US + 3 * SECOND, "settled", consumer="c-i1", incarnation="i1", seq=held.seq))
    later = HandOver("later", 7, "i2", dispatched=START_US + 3 * SECOND, ended=START_US + 4 * SECOND)
    leader.hand(numbers.number(later))
    leader.end()
    return {"before": "unknown", "held": "unknown", "later": "unknown"}


def twice(folder: Path) -> Verdicts:
    """A file is there twice, and a consumer settled its last message once more for the next leader."""
    numbers, leader = Numbers(), Leader(folder, "twice")
    hands = [numbers.number(each) for each in in_order("g", 3)]
    leader.hand(*hands)
    leader.end("Redis was lost")
    (file,) = (folder / "lane=twice").rglob("*.parquet")
    shutil.copy(file, file.with_name("copy-of-" + file.name))
    second = Leader(folder, "twice", 8, 7, START_US + SECOND)
    second.tell(row(START_US + 2 * SECOND, "settled", **hands[-1].values()))
    second.end()
    return {"g": "kept"}


def boundaries(folder: Path) -> Verdicts:
    """Retention has deleted the first file, and the lane goes on."""
    numbers, leader = Numbers(), Leader(folder, "boundaries", former_epoch=6)
    hands = [numbers.number(each) for each in in_order("g", 6)]
    for start in (0, 3):
        leader.hand(*hands[start : start + 3])
        leader.close()
    first, _ = sorted((folder / "lane=boundaries").rglob("*.parquet"))
    first.unlink()
    return {"g": "kept"}


def bad_files(folder: Path) -> Verdicts:
    """A lane whose second leadership left nothing that can be read, beside files of others."""
    numbers, leader = Numbers(), Leader(folder, "bad")
    hands = [numbers.number(each) for each in in_order("g", 3)]
    leader.hand(*hands[:2])
    leader.end()
    Leader(folder, "bad", 8, 7, START_US + SECOND).end()
    third = Leader(folder, "bad", 9, 8, START_US + 2 * SECOND)
    hands[2].dispatched, hands[2].ended = START_US + 2 * SECOND, START_US + 3 * SECOND
    third.hand(hands[2])
    third.end()
    day = next((folder / "lane=bad").iterdir())
    _, second, last = sorted(day.iterdir())
    second.write_bytes(second.read_bytes()[:-40])
    newer = arrow_schema({"schema_version": "2", "lane": "bad", "writer": "9-x", "lane_epoch": "9"})
    pq.write_table(newer.empty_table(), last.with_name("10-0000000a-000000000001.parquet"))
    last.with_name("10-0000000a-000000000002.parquet").write_bytes(b"")
    pq.write_table(pa.table({"a": [1]}), day / "theirs.parquet")
    (day / "notes.txt").write_text("whatever")
    (day / ".half.parquet").write_bytes(b"half")
    return {"g": "unknown"}


def renamed(folder: Path) -> Verdicts:
    numbers, leader = Numbers(), Leader(folder, "new-name")
    leader.hand(*(numbers.number(each) for each in in_order("g", 3)))
    leader.end()
    (folder / "lane=new-name").rename(folder / "lane=007")
    return {"g": "kept"}


CASES = {
    "killed": killed, "missing-file": missing_file, "no-ledger": no_ledger, "dropped": dropped,
    "twice": twice, "boundaries": boundaries, "bad": bad_files, "new-name": renamed,
}  # fmt: skip


@pytest.fixture(scope="module")
def cases(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Report, dict[str, Verdicts]]:
    """Every case is a lane of one ledger."""
    folder = tmp_path_factory.mktemp("gaps")
    expected = {name: make(folder / "ledger") for name, make in CASES.items()}
    return run_pipeline(spark, folder), expected


@pytest.mark.parametrize("lane", CASES)
def test_a_verdict_is_unknown_only_where_something_may_be_hidden(cases: Cases, lane: str) -> None:
    report, expected = cases
    groups = {r["group"]: r["verdict"] for r in report.rows("groups") if r["lane"] == lane}
    assert groups == expected[lane]
    assert report.rows("violations") == []


def test_every_gap_has_its_name(cases: Cases) -> None:
    found = {(r["lane"], r["kind"]): r for r in cases[0].rows("gaps")}
    gaps = {key for key, r in found.items() if not r["is_boundary"]}
    assert gaps == {
        ("killed", "no_end"), ("missing-file", "ordinals"), ("no-ledger", "no_ledger"),
        ("dropped", "dropped"), ("bad", "ordinals"),
    }  # fmt: skip
    missing = found["missing-file", "ordinals"]
    assert [missing["first_ordinal"], missing["last_ordinal"]] == [8, 10]
    assert (missing["until"] - missing["since"]).total_seconds() == pytest.approx(2, abs=0.1)
    assert found["boundaries", "begins"]["is_boundary"]
    assert found["boundaries", "goes_on"]["is_boundary"]
    assert cases[0].summary["lanes"]["twice"]["hand_overs"] == 3


def test_files_that_can_not_be_read_are_each_one_line(cases: Cases) -> None:
    report = cases[0]
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
    assert (
        "remark: 1 files in the folder of lane 007 are of lane new-name, and counted as that one's" in lines
    )
    assert lines[-1].startswith("Verdict: UNKNOWN for ")


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


def test_a_window_leaves_out_what_ended_before_and_after(spark: SparkSession, tmp_path: Path) -> None:
    numbers, leader = Numbers(), Leader(tmp_path / "ledger")
    swapped = [numbers.number(each) for each in in_order("g", 4)]
    swapped[0].arrival, swapped[1].arrival = 2, 1
    leader.hand(*swapped)
    leader.end()
    report = run_pipeline(spark, tmp_path, Window(START_US + 2 * MS, START_US + 3 * MS))
    assert [r["arrival"] for r in report.rows("hand_overs")] == [3]
    assert report.verdicts() == {"g": "kept"}
    assert report.summary["window"]["since"] == "2026-11-22T23:59:50.002000+00:00"
