"""How long messages take is counted for all of them, by leadership."""

from __future__ import annotations

from dispatcher.core.effects import Effects
from dispatcher.core.records import Dispatched
from dispatcher.http.metrics import HISTOGRAMS
from dispatcher.service.durations import BOUNDS_S, Durations, Histogram, MessageDurations
from tests.service.harness import LANE, Bench, lane
from tests.spec.lane_bench import LaneBench
from tests.waiting import eventually


class TimedBench(LaneBench):
    """Every step is counted."""

    def __init__(self) -> None:
        self.durations = MessageDurations()
        super().__init__()

    def _take(self, effects: Effects) -> list[Dispatched]:
        self.durations.decided(effects, self.now_ms)
        return super()._take(effects)

    def waits_s(self) -> tuple[int, float]:
        return self.durations.wait.buckets().total, round(self.durations.wait.buckets().sum_s, 3)

    def processed_s(self) -> tuple[int, float]:
        return self.durations.process.buckets().total, round(self.durations.process.buckets().sum_s, 3)


def test_a_duration_counts_up_to_every_bound_that_it_does_not_exceed() -> None:
    histogram = Histogram()
    histogram.add(0.001)
    histogram.add(0.0011)
    histogram.add_all_ms([2_000, 2_000, 10_000_000, -1])
    buckets = histogram.buckets()
    up_to = dict(buckets.up_to)
    assert list(up_to) == list(BOUNDS_S)
    assert (up_to[0.0005], up_to[0.001], up_to[0.0025], up_to[1.0]) == (1, 2, 3, 3)
    assert (up_to[2.5], up_to[1800.0]) == (5, 5)
    assert buckets.total == 6
    assert round(buckets.sum_s, 4) == 10_004.0021


def test_what_one_looks_at_begins_anew_and_the_histogram_does_not() -> None:
    durations = Durations()
    durations.add(1.0)
    assert durations.take() is not None
    durations.add(3.0)
    spread = durations.take()
    assert spread is not None
    assert spread.longest_ms == 3_000
    assert durations.all.buckets().total == 2


def test_a_message_waits_until_its_first_hand_over_and_is_worked_on_until_it_ends() -> None:
    bench = TimedBench()
    bench.arrive("a1", "b1")
    bench.step(after_ms=399)
    assert bench.waits_s() == (0, 0)
    bench.now_ms += 99
    bench.join("one")
    assert bench.waits_s() == (2, 1.0)
    assert bench.processed_s() == (0, 0)
    bench.now_ms += 249
    bench.settle("one", "a1", "b1")
    assert bench.processed_s() == (2, 0.5)
    assert bench.waits_s() == (2, 1.0)


def test_a_message_that_is_handed_over_again_has_waited_once() -> None:
    bench = TimedBench()
    bench.join("one")
    bench.arrive("a1")
    bench.now_ms += 5_000
    bench.die("one")
    bench.join("two")
    assert bench.holder("a1") == "two"
    bench.now_ms += 249
    bench.settle("two", "a1")
    assert bench.waits_s() == (1, 0.001)
    assert bench.processed_s() == (1, 0.25)


async def test_a_leadership_has_all_histograms_and_a_standby_none(bench: Bench) -> None:
    await bench.run(orders=lane("in"))
    await bench.joined("c1")
    client = await bench.client()
    client.send("in", b"x", "g")
    await eventually(lambda: bench.runners[LANE].durations()["process"].total == 1)
    durations = bench.runners[LANE].durations()
    assert set(durations) == set(HISTOGRAMS)
    assert durations["wait"].total == 1
    assert durations["commit"].total > 0
    await eventually(lambda: bench.runners[LANE].durations()["confirm"].total > 0)
    await bench.stop()
    assert bench.runners[LANE].durations() == {}
