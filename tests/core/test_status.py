"""The status of a lane counts what is not normal."""

from __future__ import annotations

from dispatcher.core.membership.liveness import FROZEN_AFTER_HEARTBEATS
from dispatcher.wire.protocol import Heartbeat
from tests.spec.lane_bench import LaneBench


def test_a_consumer_is_frozen_until_it_is_heard_again() -> None:
    bench = LaneBench()
    bench.join("one")
    assert bench.status()["consumers_frozen"] == 0
    bench.step(after_ms=(FROZEN_AFTER_HEARTBEATS + 2) * bench.lane.state.options.heartbeat_ms)
    assert bench.status()["consumers_frozen"] == 1
    bench.step(Heartbeat(consumer="one", incarnation="one-1", queue="one-1.1", held=0, last=0))
    assert bench.status()["consumers_frozen"] == 0


def test_an_operation_is_under_way_until_its_result() -> None:
    bench = LaneBench()
    bench.arrive("a1", "a2")
    bench.command("groups.purge", group="a")
    assert bench.status()["operations"] == 1
    bench.mark()
    assert bench.status()["operations"] == 0
