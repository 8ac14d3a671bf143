"""docs/semantics.md, L-2: what a lane that goes on takes over from a changed configuration."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from tests.spec.lane_bench import LaneBench, clause, names


def reconfigure(bench: LaneBench, **changes: Any) -> None:
    bench.lane.reconfigure(replace(bench.lane.state.options, **changes))


def test_l2_weights_count_from_the_next_decision_on() -> None:
    clause("L-2", "Weights, `rebalance.pause`, `reconnect_grace` and `liveness_interval` count from the next")
    bench = LaneBench("concurrent", weights=(1, 1))
    bench.arrive(*(f"a{n}" for n in range(1, 101)), inbound=0)
    bench.arrive(*(f"b{n}" for n in range(1, 101)), inbound=1)
    bench.join("one", prefetch=20)
    assert Counter(name[0] for name in names(bench.sent)) == {"a": 10, "b": 10}
    reconfigure(bench, inbounds=(("in0", 10), ("in1", 1)))
    bench.join("two", prefetch=66)
    assert Counter(name[0] for name in names(bench.sent[20:])) == {"a": 60, "b": 6}


def test_l2_the_next_rebalance_pauses_as_it_is_said_now() -> None:
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1", "b1", "c1", "d1")
    bench.join("two")
    reconfigure(bench, rebalance_pause="lane")
    bench.command()
    assert bench.arrive("z1") == [], "the lane waits"


def test_l2_a_connection_that_is_lost_now_has_the_grace_of_now() -> None:
    bench = LaneBench()
    bench.join("one")
    bench.arrive("a1")
    bench.join("two")
    reconfigure(bench, reconnect_grace_ms=5_000)
    bench.step(bench.returned("one"))
    assert names(bench.step(after_ms=4_000)) == []
    assert bench.markers == []
    bench.step(after_ms=1_001)
    assert len(bench.markers) == 1, "it is taken back once its settles are read"
