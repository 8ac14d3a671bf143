"""A group's history is what its hand-overs say, slot by slot, and it stays small however many there are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dispatcher.pipeline.page import open_report
from dispatcher.pipeline.page.histories import HOLDERS_MAX, SLOTS, GroupTimes, HolderTimes, histories
from dispatcher.pipeline.page.history_view import history_chart
from dispatcher.pipeline.page.render import render
from tests.page.reports import LANE, START, write_report, write_table

SECOND = timedelta(seconds=1)
#: Such that a slot is one second.
LAST = START + SLOTS * SECOND - timedelta(microseconds=1)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return write_report(tmp_path / "report", groups=("g",))


def hand(consumer: str, since: float, until: float | None, **values: Any) -> dict[str, Any]:
    """Times are seconds after the start."""
    row = {
        "lane": LANE, "group": "g", "consumer": consumer, "attempt": 1, "received_at": START + since * SECOND,
        "dispatched_at": START + since * SECOND,
        "ended_at": None if until is None else START + until * SECOND,
    }  # fmt: skip
    return row | values


def of(report: Path, rows: list[dict[str, Any]], group: dict[str, Any] | None = None) -> GroupTimes:
    row = {"lane": LANE, "group": "g", "first_at": START, "last_at": LAST, "open": 0, "verdict": "kept"}
    (report / "groups" / "part-0.parquet").unlink()
    write_table(report, "groups", [row | {"because": None} | (group or {})])
    write_table(report, "hand_overs", rows)
    with open_report(report) as source:
        return histories(source, LANE, ["g", "unheard of"])["g"]


def seconds(history: GroupTimes, place: int) -> list[int]:
    return [second for second, held in enumerate(history.holders[place].held) if held]


def test_who_had_it_when_and_what_waited(report: Path) -> None:
    (report / "lifecycle" / "part-0.parquet").unlink()
    history = of(report, [
        hand("b", 0, 2.5, received_at=START - 5 * SECOND), hand("b", 40, 42),
        hand("a", 2.7, 4.2, received_at=START + SECOND), hand("a", 10, None, attempt=2),
        hand("a", 20, 21, received_at=None),
    ])  # fmt: skip
    assert (history.since_us, history.step_us) == (round(START.timestamp() * 1e6), 1_000_000)
    assert [(each.consumers, each.hand_overs) for each in history.holders] == [(["b"], 2), (["a"], 3)]
    assert seconds(history, 0) == [0, 1, 2, 40, 41, 42]
    assert seconds(history, 1) == [2, 3, 4, *range(10, SLOTS)], "the one without an end is still there"
    assert [second for second, count in enumerate(history.waiting) if count] == [1]


def test_what_nobody_got_waits_to_the_lanes_end(report: Path) -> None:
    """The lane's timeline reaches 100 s; 30 messages wait from the beginning on."""
    history = of(report, [hand("a", 0, 1)])
    assert history.step_us * SLOTS >= 100_000_000 > history.step_us * (SLOTS - 1)
    assert (history.waiting[0], history.waiting[-1]) == (2, 30)


def test_a_group_without_an_order_has_the_lanes_times(report: Path) -> None:
    (report / "lifecycle" / "part-0.parquet").unlink()
    history = of(report, [hand("a", 0, 1)], {"group": "another"})
    assert history.step_us * SLOTS >= 100_000_000


def test_every_slot_is_what_a_look_at_all_hand_overs_says(report: Path) -> None:
    (report / "lifecycle" / "part-0.parquet").unlink()
    random = Random(5)
    rows = []
    for _ in range(400):
        since = random.uniform(0, SLOTS - 10)
        came = since - random.uniform(0, 5)
        end = since + random.uniform(0, 8)
        rows.append(hand(f"c{random.randrange(9)}", since, end, received_at=START + came * SECOND))
    history = of(report, rows)

    def slot(time: Any) -> int:
        return max(0, int((time - START) / SECOND))

    lines = {name: holder for holder in history.holders for name in holder.consumers}
    assert len(history.holders) == HOLDERS_MAX + 1
    assert len(lines) == 9
    assert len(history.holders[-1].consumers) == 3
    assert sum(holder.hand_overs for holder in history.holders) == 400
    for second in range(SLOTS):
        had = {
            row["consumer"] for row in rows if slot(row["dispatched_at"]) <= second <= slot(row["ended_at"])
        }
        for holder in history.holders:
            assert holder.held[second] == bool(had & {*holder.consumers})
        waits = [row for row in rows if slot(row["received_at"]) <= second < slot(row["dispatched_at"])]
        assert history.waiting[second] == len(waits)


def test_a_picture_is_small_and_has_the_violations() -> None:
    held = [bool(slot % 2) for slot in range(SLOTS)]
    holders = [HolderTimes([f"{n}{'é' * 500}"], 10**9, held) for n in range(HOLDERS_MAX)]
    waiting = [10**6 * (slot % 2) for slot in range(SLOTS)]
    history = GroupTimes("g", 10**15, 10**6, [*holders, HolderTimes(["a", "b"], 2, held)], waiting)
    second = datetime.fromtimestamp(10**9 + SLOTS / 2, UTC)
    chart = history_chart("key", history, [(10**9 + 5, 10**9 + 6), (0, 1)], [second, second])
    assert [line.label for line in chart.lines] == ["1", "2", "3", "4", "5", "6", "others"]
    assert chart.marks == [(chart.left + chart.right) / 2]
    assert len(chart.shades) == 1
    text = "".join(line.path + line.about for line in chart.lines) + chart.waiting
    assert len(text.encode()) < 4_000


def test_the_page_shows_each_group_of_the_violations_and_the_hottest(tmp_path: Path) -> None:
    report = write_report(tmp_path / "report", verdict="violated", violations=3, groups=("g", "h"))
    with open_report(report) as source:
        text = render(source)
    assert text.count('<svg class="chart history"') == 2, "violations are of a group without hand-overs here"
    report = write_report(tmp_path / "hot", verdict="violated", violations=3)
    with open_report(report) as source:
        text = render(source)
    assert text.count('id="violation-1-history-t"') == 1
    assert 'id="violation-2-history-t"' not in text, "of several violations of a group the first has it"
    assert 'id="lane-1-history-8-t"' in text
    for table in "hand_overs", "lifecycle":
        (report / table / "part-0.parquet").unlink()
    with open_report(report) as source:
        assert render(source)
