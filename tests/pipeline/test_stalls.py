"""A lane that stands still while messages wait is told, with what waited; one that had a reason to is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dispatcher.pipeline.gaps import Window
from dispatcher.pipeline.ledger_files import find_files
from dispatcher.pipeline.ledger_reading import read_records
from dispatcher.pipeline.stalls import stalls
from dispatcher.pipeline.summary import about_stalls, as_text
from tests.pipeline.conftest import EVERYTHING, Everything
from tests.pipeline.ledgers import START_US
from tests.pipeline.planted_stalls import LONG, SECOND, STALL_CASES, Sampled, Spans


def spans(rows: list[dict[str, Any]], lane: str) -> Spans:
    start_s = START_US / 1e6
    return sorted(
        (round(each["since"].timestamp() - start_s), round(each["until"].timestamp() - start_s))
        for each in rows if each["lane"] == lane
    )  # fmt: skip


@pytest.mark.parametrize("lane", STALL_CASES)
def test_only_what_had_no_reason_is_a_stall(everything: Everything, lane: str) -> None:
    assert spans(everything.report.rows("stalls"), lane) == everything.stalls[lane]


def test_the_summary_says_how_long_and_what_waited(everything: Everything) -> None:
    report = everything.report
    lanes = report.summary["lanes"]
    found = lanes["stands-still"]["stalls"]
    assert (found["count"], found["seconds"]) == (2, 20 + LONG)
    longest = found["longest"][0]
    assert (longest["since"], longest["until"]) == ("2026-11-22 23:59:56", "2026-11-23 00:00:16")
    shown = {name: longest[name] for name in ("seconds", "waiting", "in_flight", "ended", "held_groups")}
    assert shown == {"seconds": 20, "waiting": 190_000, "in_flight": 400, "ended": 100, "held_groups": 0}
    assert lanes["stands-still"]["left_waiting"] == 3
    assert lanes["works"]["stalls"] == {"count": 0, "seconds": 0, "longest": []}
    assert sorted(each["held_groups"] for each in lanes["held-groups"]["stalls"]["longest"]) == [0, 1]
    written = json.loads((report.folder / "summary.json").read_text())
    assert written["lanes"]["held-groups"] == lanes["held-groups"]


def test_people_are_told(everything: Everything) -> None:
    report = everything.report
    still, again, left = about_stalls(report.summary["lanes"]["stands-still"])
    assert "20 s" in still
    assert "190,000 messages waited" in still
    assert "400 messages" in still
    assert "2 times" in again
    assert "3 messages" in left
    lanes = {lane: facts for lane, facts in report.summary["lanes"].items() if lane in STALL_CASES}
    text = as_text(report.summary | {"lanes": lanes})
    assert text.count("stood still for") == 4
    assert "1 group that was paused or stopped" in text
    assert list(about_stalls(report.summary["lanes"]["works"])) == []
    assert list(about_stalls({})) == []


def test_a_window_has_its_own_stalls_and_who_came_before_is_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    lane = Sampled(tmp_path, "orders")
    lane.came()
    lane.sample(40)
    lane.leader.end()
    records = read_records(spark, str(tmp_path), find_files(str(tmp_path)))

    def found(window: Window) -> Spans:
        return spans([each.asDict() for each in stalls(records, window).collect()], "orders")

    assert found(EVERYTHING) == [(1, 40)]
    assert found(Window(START_US + 11 * SECOND, START_US + 31 * SECOND)) == [(11, 30)]
    assert found(Window(START_US + 31 * SECOND)) == []
