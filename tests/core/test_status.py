"""The status of a lane counts what is not normal."""

from __future__ import annotations

from dispatcher.core.membership.liveness import FROZEN_AFTER_HEARTBEATS
from dispatcher.core.views.views import Views
from dispatcher.wire.protocol import Heartbeat
from tests.spec.flag_bench import facts, says
from tests.spec.lane_bench import LaneBench


def test_a_consumer_is_frozen_until_it_is_heard_again() -> None:
    bench = LaneBench()
    bench.join("one")
    assert bench.status()["consumers_frozen"] == 0
    bench.step(after_ms=(FROZEN_AFTER_HEARTBEATS + 2) * bench.lane.state.options.heartbeat_ms)
    assert bench.status()["consumers_frozen"] == 1
    bench.step(Heartbeat(consumer="one", incarnation="one-1", queue="one-1.1", held=0, last=0))
    assert bench.status()["consumers_frozen"] == 0


def test_why_tells_of_a_frozen_owner() -> None:
    bench = LaneBench()
    bench.join("one", prefetch=1)
    bench.arrive("a1", "a2")
    views = Views(bench.lane.state)
    assert views.why({"group": "a"})["owner_state"] == "live"
    bench.step(after_ms=(FROZEN_AFTER_HEARTBEATS + 2) * bench.lane.state.options.heartbeat_ms)
    told = views.why({"group": "a"})
    assert (told["owner"], told["owner_state"], told["reason"]) == ("one", "frozen", "consumer_full")
    assert any(says(detail, "one", "frozen") for detail in told["details"])


def test_why_names_the_groups_that_fill_a_prefetch() -> None:
    bench = LaneBench()
    bench.join("one", prefetch=9)
    bench.arrive("a1", "a2", "b1", "a3", "c1", "d1", "c2", "a4", "b2")
    bench.arrive("b3")
    assert facts(bench, "b")["in_flight_of"] == [
        {"group": "a", "messages": 4}, {"group": "b", "messages": 2}, {"group": "c", "messages": 2},
    ]  # fmt: skip


def test_an_operation_is_under_way_until_its_result() -> None:
    bench = LaneBench()
    bench.arrive("a1", "a2")
    bench.command("groups.purge", group="a")
    assert bench.status()["operations"] == 1
    bench.mark()
    assert bench.status()["operations"] == 0
