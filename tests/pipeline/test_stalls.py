"""A lane that stands still while messages wait is told, with what waited; one that had a reason to is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dispatcher.ledger.rows import row
from dispatcher.ledger.schema import Event
from dispatcher.pipeline.gaps import Window
from dispatcher.pipeline.ledger_files import find_files
from dispatcher.pipeline.ledger_reading import read_records
from dispatcher.pipeline.stalls import STALL_US, stalls
from dispatcher.pipeline.summary import about_stalls, as_text
from tests.pipeline.conftest import EVERYTHING, Report, run_pipeline
from tests.pipeline.ledgers import MS, START_US, HandOver, Leader

SECOND = 1_000 * MS
#: From when until when a lane stood still, in seconds after its start.
Spans = list[tuple[int, int]]
LONG = STALL_US // SECOND


class Sampled:
    """A leadership with a clock, whose samples are of two queues. Nothing ever waits in the second one."""

    def __init__(self, folder: Path, lane: str, lane_epoch: int = 7, **options: Any) -> None:
        self.leader = Leader(folder, lane, lane_epoch, **options)
        self.now_us, self.handed_over = self.leader.now_us, 0

    def tell(self, *events: str, **values: Any) -> None:
        for event in events:
            self.leader.tell(row(self.now_us, event, **values))

    def sample(self, seconds: int, waiting: int = 5, in_flight: int = 0, more: int = 0) -> None:
        """One each second, with `more` hand-overs in each."""
        for _ in range(seconds):
            self.now_us += SECOND
            self.handed_over += more
            counts = {"in": (waiting, in_flight, self.handed_over), "other": (0, 0, 7)}
            for inbound, (waits, out, handed_over) in counts.items():
                self.leader.tell(row(
                    self.now_us, Event.SAMPLED, inbound=inbound, waiting=waits, in_flight=out,
                    messages=handed_over, cost=handed_over, detail='{"full":false}',
                ))  # fmt: skip

    def came(self, incarnation: str = "i1") -> None:
        self.tell(Event.CONSUMER_JOINED, consumer=f"c-{incarnation}", incarnation=incarnation)

    def went(self, incarnation: str = "i1") -> None:
        self.tell(Event.CONSUMER_TAKEN_BACK, consumer=f"c-{incarnation}", incarnation=incarnation)


def works(folder: Path) -> Spans:
    """It hands over, then for as long as is no stall nothing, and goes on."""
    lane = Sampled(folder, "works")
    lane.came()
    lane.sample(30, more=1)
    lane.sample(LONG - 1)
    lane.sample(30, more=1)
    lane.leader.end()
    return []


def stands_still(folder: Path) -> Spans:
    """Twice; what comes between is hand-overs, and a consumer more changes nothing."""
    lane = Sampled(folder, "stands-still")
    lane.came()
    lane.sample(5, 0, more=1)
    lane.sample(10, 190_000, 400)
    lane.came("i2")
    lane.sample(11, 150_000, 300)
    lane.sample(3, more=2)
    lane.sample(LONG)
    for arrival in range(3):
        waits = HandOver(f"g{arrival}", arrival).values()
        waits |= dict.fromkeys(("seq", "incarnation", "consumer", "epoch", "group_seq", "attempt"))
        lane.leader.tell(row(lane.now_us, Event.RECEIVED, received_at=lane.now_us, **waits))
    lane.leader.end()
    return [(6, 26), (29, 29 + LONG)]


def no_wonder(folder: Path) -> Spans:
    """Nobody is there, the lane is paused, or nothing waits; and all this once more for the next leader."""
    lane = Sampled(folder, "no-wonder")
    lane.sample(30)
    lane.came()
    lane.tell("lane_paused")
    lane.sample(30)
    lane.tell("lane_resumed")
    lane.sample(30, 0)
    lane.went()
    lane.sample(30)
    lane.tell("lane_paused")
    lane.came()
    lane.leader.end()
    consumers = [{"consumer": "c-i1", "incarnation": "i1"}]
    later = Sampled(
        folder, "no-wonder", 8, former_epoch=7, started_us=lane.now_us, paused=True, consumers=consumers
    )
    later.sample(30)
    later.tell("lane_resumed")
    later.sample(30, 0)
    later.went()
    later.sample(30)
    later.leader.end()
    return []


def goes_on(folder: Path) -> Spans:
    """Who was there before is there under the next leader; each one's samples count from 0 on."""
    lane = Sampled(folder, "goes-on")
    lane.came()
    lane.sample(6)
    lane.leader.end()
    consumers = [{"consumer": "c-i1", "incarnation": "i1"}]
    later = Sampled(folder, "goes-on", 8, former_epoch=7, started_us=lane.now_us, consumers=consumers)
    later.sample(15)
    later.leader.end()
    return [(7, 21)]


def headless(folder: Path) -> Spans:
    """The file with the beginning is gone: who has messages in hand is there, of others nothing is known."""
    lane = Sampled(folder, "headless")
    lane.came()
    lane.leader.close(lane.now_us)
    (first,) = (folder / "lane=headless").rglob("*.parquet")
    lane.sample(15, 5, 3)
    lane.sample(15, 5, 0)
    lane.leader.end()
    first.unlink()
    return [(1, 15)]


def held(folder: Path) -> Spans:
    """Groups that an operator has paused, or that have stopped, are counted with what waits."""
    lane = Sampled(folder, "held")
    lane.came()
    for event, group in ("group_paused", "a"), ("group_stopped", "b"), ("group_released", "b"):
        lane.tell(event, group=group)
    lane.sample(20)
    lane.tell("group_resumed", group="a")
    lane.sample(1, more=1)
    lane.sample(15, 6)
    lane.leader.end()
    return [(1, 20), (21, 36)]


CASES = {
    "works": works, "stands-still": stands_still, "no-wonder": no_wonder, "goes-on": goes_on,
    "headless": headless, "held": held,
}  # fmt: skip


@pytest.fixture(scope="module")
def planted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, dict[str, Spans]]:
    folder = tmp_path_factory.mktemp("stalls")
    expected = {name: plant(folder / "ledger") for name, plant in CASES.items()}
    return run_pipeline(spark, folder), expected


def spans(rows: list[dict[str, Any]], lane: str) -> Spans:
    start_s = START_US / 1e6
    return sorted(
        (round(each["since"].timestamp() - start_s), round(each["until"].timestamp() - start_s))
        for each in rows if each["lane"] == lane
    )  # fmt: skip


@pytest.mark.parametrize("lane", CASES)
def test_only_what_had_no_reason_is_a_stall(planted: tuple[Report, dict[str, Spans]], lane: str) -> None:
    report, expected = planted
    assert spans(report.rows("stalls"), lane) == expected[lane]


def test_the_summary_says_how_long_and_what_waited(planted: tuple[Report, dict[str, Spans]]) -> None:
    report, _ = planted
    lanes = report.summary["lanes"]
    found = lanes["stands-still"]["stalls"]
    assert (found["count"], found["seconds"]) == (2, 20 + LONG)
    longest = found["longest"][0]
    assert (longest["since"], longest["until"]) == ("2026-11-22 23:59:56", "2026-11-23 00:00:16")
    shown = {name: longest[name] for name in ("seconds", "waiting", "in_flight", "ended", "held_groups")}
    assert shown == {"seconds": 20, "waiting": 190_000, "in_flight": 400, "ended": 100, "held_groups": 0}
    assert lanes["stands-still"]["left_waiting"] == 3
    assert lanes["works"]["stalls"] == {"count": 0, "seconds": 0, "longest": []}
    assert sorted(each["held_groups"] for each in lanes["held"]["stalls"]["longest"]) == [0, 1]
    assert json.loads((report.folder / "summary.json").read_text())["lanes"]["held"] == lanes["held"]


def test_people_are_told(planted: tuple[Report, dict[str, Spans]]) -> None:
    report, _ = planted
    still, again, left = about_stalls(report.summary["lanes"]["stands-still"])
    assert "20 s" in still
    assert "190,000 messages waited" in still
    assert "400 messages" in still
    assert "2 times" in again
    assert "3 messages" in left
    text = as_text(report.summary)
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
