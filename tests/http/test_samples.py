"""The numbers of the last ten minutes, of which the page draws its sparklines."""

from __future__ import annotations

from typing import Any

from dispatcher.http.samples import INTERVAL_S, SAMPLES_KEPT, Samples
from dispatcher.http.views import LaneSample, Spread
from tests.service.harness import Bench, lane
from tests.waiting import eventually


class Lane:
    """A lane with the numbers that a test gives it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.now: LaneSample | None = LaneSample(7, 0, 0, 0, 0, 0, None, None, None)

    def sample(self) -> LaneSample | None:
        return self.now

    def counts(self, **changes: Any) -> None:
        assert self.now is not None
        self.now = self.now._replace(**changes)


def newest(samples: Samples, lane: str = "orders") -> dict[str, Any]:
    return {field: numbers[-1] for field, numbers in samples.table()["lanes"][lane].items()}


def test_rates_are_what_was_added_in_a_second() -> None:
    lane = Lane("orders")
    samples = Samples([lane])
    samples.sample(5.0)
    assert newest(samples)["settled_per_s"] is None, "the first sample has nothing before it"
    lane.counts(settled=100, dispatched=150, waiting=3, parked=4, ready=5, in_flight=50)
    lane.counts(commit=Spread(0.51234, 9.0), confirm=Spread(1.0, 2.0))
    samples.sample(4.0)
    assert newest(samples) == {
        "settled_per_s": 25.0, "dispatched_per_s": 37.5, "backlog": 12, "in_flight": 50,
        "commit_ms": 0.512, "commit_longest_ms": 9.0, "confirm_ms": 1.0, "confirm_longest_ms": 2.0,
    }  # fmt: skip


def test_a_new_leadership_and_none_leave_a_gap() -> None:
    lane = Lane("orders")
    samples = Samples([lane])
    lane.counts(settled=1_000)
    samples.sample(5.0)
    lane.counts(lane_epoch=8, settled=10)
    samples.sample(5.0)
    assert (newest(samples)["settled_per_s"], newest(samples)["backlog"]) == (None, 0)
    lane.now = None
    samples.sample(5.0)
    assert set(newest(samples).values()) == {None}


def test_ten_minutes_are_kept_of_each_lane_that_is_configured() -> None:
    lanes = [Lane("orders"), Lane("bills")]
    samples = Samples(lanes)
    for number in range(SAMPLES_KEPT + 10):
        lanes[0].counts(in_flight=number)
        samples.sample(5.0)
    table = samples.table("orders")
    assert list(table["lanes"]) == ["orders"]
    assert table["lanes"]["orders"]["in_flight"] == list(range(10, SAMPLES_KEPT + 10))
    assert SAMPLES_KEPT * INTERVAL_S == 600
    del lanes[0]
    samples.sample(5.0)
    assert list(samples.table()["lanes"]) == ["bills"]


async def test_a_lane_that_runs_measures_commits_and_confirms_and_counts_what_is_ready(bench: Bench) -> None:
    await bench.run(orders=lane(look_ahead=3))
    runner, client = bench.runners["orders"], await bench.client()
    for number in range(10):
        client.send("in", b"x", f"g{number}")
    await client.confirmed()
    await eventually(lambda: bench.status()["held"] == 3)

    def ready() -> bool:
        sample = runner.sample()
        return sample is not None and sample.ready == 7

    await eventually(ready, what="what is ready, at the sample after the one that asked for it")
    runner.sample()
    await bench.joined("c1")
    await eventually(lambda: bench.counter("settled") == 10)
    sample = runner.sample()
    assert sample is not None
    assert (sample.settled, sample.dispatched, sample.in_flight) == (10, 10, 0)
    for spread in (sample.commit, sample.confirm):
        assert spread is not None
        assert 0 < spread.mean_ms <= spread.longest_ms
    await bench.stop()
    assert runner.sample() is None
