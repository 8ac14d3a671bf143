"""A run over a ledger that has grown computes what is new, and says the same as one from nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bench.pipeline import by_duckdb
from dispatcher.ledger.rows import row
from dispatcher.pipeline.gaps import Window
from dispatcher.pipeline.ledger_files import find_files
from dispatcher.pipeline.memory import Memory, Piece
from dispatcher.pipeline.pieces import stand_alone
from dispatcher.pipeline.ranges import ROWS
from dispatcher.pipeline.report_folder import TABLES
from dispatcher.pipeline.session import java_process
from tests.pipeline.conftest import Report, run_pipeline
from tests.pipeline.ledgers import MS, START_US, HandOver, Leader, Numbers, in_order
from tests.pipeline.planted_midnights import DAY, MIDNIGHT, Midnights

DATE_3 = "date=2026-11-24"


class Grown:
    """A ledger of three dates, added one after the other, and its reports."""

    def __init__(self, folder: Path) -> None:
        self.folder = self.whole = folder
        self.numbers = Numbers()
        self.leader = Leader(folder / "ledger")
        self.midnights = Midnights(folder / "ledger")

    def first(self) -> None:
        """One is in hand at midnight, one is settled after it by a file that was begun before."""
        number = self.numbers.number
        self.leader.hand(*map(number, in_order("g", 4)))
        self.leader.hand(*(number(HandOver("old", n, "i3", START_US, START_US + MS)) for n in (51, 53, 52)))
        self.held = number(HandOver("held", 20, dispatched=START_US + MS, ended=MIDNIGHT + 5 * MS))
        self.late = number(HandOver("late", 21, dispatched=START_US + MS, ended=MIDNIGHT + DAY + 5 * MS))
        waiting = HandOver("waits", 30).values() | {"seq": None, "incarnation": None, "consumer": None}
        self.leader.tell(
            row(START_US + MS, "received", received_at=START_US, **waiting),
            self.held.begun(), self.late.begun(),
        )  # fmt: skip
        self.leader.hand(number(HandOver("g", 5, dispatched=MIDNIGHT - MS, ended=MIDNIGHT + MS)))
        self.leader.close(MIDNIGHT + 2 * MS)
        self.midnights.tell()

    def second(self) -> None:
        """It ends; the same group goes on, out of order with what was before."""
        number = self.numbers.number
        self.leader.hand(
            self.held, number(HandOver("g", 3, dispatched=MIDNIGHT + 6 * MS, ended=MIDNIGHT + 7 * MS))
        )
        self.leader.hand(*map(number, in_order("h", 3, first=40, since=MIDNIGHT + 8 * MS)))
        self.leader.hand(
            number(HandOver("twice", 60, "i4", MIDNIGHT, MIDNIGHT + MS)),
            number(HandOver("back", 61, "i4", MIDNIGHT, MIDNIGHT + MS, outcome="failed")),
        )
        self.leader.end("the connection was lost")
        self.midnights.tell()

    def third(self) -> None:
        """Another leader: what the first one had is settled under it, and another consumer overlaps."""
        since = MIDNIGHT + DAY
        leader = Leader(self.folder / "ledger", "orders", 8, 7, since)
        leader.tell(self.late.over(by_another_leader=True))
        rival = self.numbers.number(HandOver("late", 22, "i2", dispatched=since + MS, ended=since + 2 * MS))
        again = self.numbers.number(HandOver("g", 6, "i2", dispatched=since + 6 * MS, ended=since + 7 * MS))
        leader.hand(rival, again)
        for group, arrival in ("twice", 60), ("back", 61):
            hand = HandOver(group, arrival, "i4", since + 6 * MS, since + 7 * MS, attempt=2)
            leader.hand(self.numbers.number(hand))
        leader.end()
        self.midnights.tell()

    def run(self, spark: SparkSession, range_rows: int = ROWS) -> Report:
        return run_pipeline(spark, self.folder, range_rows=range_rows)

    def files(self, date: str) -> list[Path]:
        return sorted((self.folder / "ledger").glob(f"*/date={date}/*.parquet"))


def tables(report: Report, lanes: Collection[str] | None = None) -> dict[str, list[str]]:
    """All rows of all tables, in an order of their own, and the summary; `lanes`: of these alone."""
    rows = {name: report.rows(name) for name in TABLES}
    if lanes is not None:
        rows = {name: [each for each in found if each["lane"] in lanes] for name, found in rows.items()}
        same = {lane: report.summary["lanes"].get(lane) for lane in sorted(lanes)}
    else:
        same = {key: value for key, value in report.summary.items() if key not in ("dates", "ledger")}
    return {name: sorted(map(_shown, found)) for name, found in rows.items()} | {"summary": [repr(same)]}


def _shown(row: dict[str, Any]) -> str:
    return repr({key: Path(value).name if key == "path" else value for key, value in sorted(row.items())})


def groups(report: Report) -> dict[tuple[str, str], dict[str, Any]]:
    return {(each["lane"], each["group"]): each for each in report.rows("groups")}


def count_more(folder: Path, lane: str, group: str, more: int) -> None:
    """Change how many hand-overs a table, or what an audit has kept, says that a group had."""
    for file in [each for each in folder.rglob("*.parquet") if each.parent.name in ("rows", "groups")]:
        table = pq.read_table(file)
        counts = [
            row["hand_overs"] and row["hand_overs"] + more * ((row["lane"], row["group"]) == (lane, group))
            for row in table.select(["lane", "group", "hand_overs"]).to_pylist()
        ]
        place = table.schema.get_field_index("hand_overs")
        changed = table.set_column(place, table.schema.field(place), pa.array(counts, pa.int64()))
        file.unlink()
        pq.write_table(changed, file)


@pytest.fixture(scope="module")
def grown(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Grown:
    """Two dates that a run has seen, whose files nobody can read any more, and one that is new."""
    grown = Grown(tmp_path_factory.mktemp("grown"))
    grown.first()
    grown.second()
    grown.whole = grown.folder / "whole"
    shutil.copytree(grown.folder / "ledger", grown.whole / "ledger")
    assert grown.run(spark).summary["dates"] == {"computed": ["2026-11-22", "2026-11-23"], "reused": []}
    for file in [*grown.files("2026-11-22"), *grown.files("2026-11-23")]:
        written = file.stat()
        file.write_bytes(bytes(written.st_size))
        os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns))
    grown.third()
    for lane in (grown.folder / "ledger").iterdir():
        shutil.copytree(lane / DATE_3, grown.whole / "ledger" / lane.name / DATE_3)
    return grown


@pytest.mark.slow
def test_what_is_added_is_computed_and_the_rest_is_left(spark: SparkSession, grown: Grown) -> None:
    """What the former audit has kept goes on into ranges of two rows: the result is that without cuts."""
    days = grown.folder / "report" / "kept" / "shares"
    before = {each: sorted(each.iterdir()) for each in days.glob("day=2026-11-2[23]")}
    count_more(grown.folder / "report" / "kept" / "audit", "orders", "h", 1_000)
    found = grown.run(spark, range_rows=2)
    assert found.summary["dates"] == {"computed": ["2026-11-24"], "reused": ["2026-11-22", "2026-11-23"]}
    assert {each: sorted(each.iterdir()) for each in before} == before
    whole = run_pipeline(spark, grown.whole)
    assert groups(found).pop(("orders", "h"))["hand_overs"] == 1_003, "it was not looked at again"
    count_more(grown.folder / "report" / "groups", "orders", "h", -1_000)
    assert tables(found) == tables(whole)
    violations = {
        (each["group"], each["rule"]) for each in whole.rows("violations") if each["lane"] == "orders"
    }
    assert violations == {("g", "order"), ("late", "overlap"), ("old", "order")}
    assert {each["verdict"] for each in whole.rows("groups")} == {"kept", "violated", "unknown"}
    verdicts = {group: row["verdict"] for (lane, group), row in groups(whole).items() if lane == "orders"}
    assert (verdicts["twice"], verdicts["back"]) == ("unknown", "kept")


class Killed(Exception):
    pass


@pytest.mark.slow
def test_after_a_kill_old_files_that_go_and_late_ones_the_next_run_is_right(
    spark: SparkSession, grown: Grown, tmp_path: Path
) -> None:
    shutil.rmtree(grown.folder / "ledger")
    shutil.copytree(grown.whole / "ledger", grown.folder / "ledger", copy_function=shutil.copy2)
    for lane in (grown.folder / "ledger").iterdir():
        shutil.rmtree(lane / "date=2026-11-22")
    late = Leader(grown.folder / "ledger", "billing", 8, None, MIDNIGHT)
    late.hand(*map(Numbers().number, in_order("new", 2, since=MIDNIGHT)))
    late.end()

    noted: list[str] = []

    @contextlib.contextmanager
    def killed_in_statistics(name: str) -> Iterator[None]:
        yield
        if name == "statistics":
            noted.append((grown.folder / "report" / ".lock").read_text())
            raise Killed

    with pytest.raises(Killed):
        run_pipeline(spark, grown.folder, stage=killed_in_statistics)
    assert noted == [f"{java_process(spark)}\n"]
    assert not (grown.folder / "report" / "summary.json").exists()
    # What was half written when it was killed.
    half = grown.folder / "report" / "hand_overs" / "date=2026-11-25" / "lane=orders"
    half.mkdir(parents=True)
    (half / "part-0.parquet").write_bytes(b"half")
    found = grown.run(spark)
    assert found.summary["dates"]["reused"]
    by_duckdb.make(grown.folder / "ledger", tmp_path / "tables")
    assert by_duckdb.differences(found.folder, tmp_path / "tables") == []
    assert by_duckdb.violation_differences(found.folder, tmp_path / "tables") == []
    verdicts = {lane: each["verdict"] for lane, each in found.summary["lanes"].items()}
    assert (verdicts["billing"], verdicts["orders"]) == ("kept", "violated")


def test_nothing_is_used_again_of_another_window_version_or_form(tmp_path: Path) -> None:
    def memory(window: Window) -> Memory:
        return Memory.load(tmp_path, window)

    kept = memory(Window())
    kept.pieces["2026-11-22"] = Piece([], {})
    kept.save()
    assert memory(Window()).pieces == kept.pieces
    assert memory(Window(since_us=1)).pieces == {}
    told = json.loads(kept.path.read_text())
    kept.path.write_text(json.dumps(told | {"of": [0, *told["of"][1:]]}))
    assert memory(Window()).pieces == {}
    kept.path.write_text("{")
    assert memory(Window()).pieces == {}


def test_copies_in_the_folder_of_another_date_are_seen(tmp_path: Path) -> None:
    numbers, leader = Numbers(), Leader(tmp_path)
    leader.hand(*map(numbers.number, in_order("g", 3)))
    leader.end()
    assert stand_alone(find_files(str(tmp_path)))
    (file,) = tmp_path.rglob("*.parquet")
    shutil.copytree(file.parent, file.parent.with_name("date=2026-11-30"))
    assert not stand_alone(find_files(str(tmp_path)))
