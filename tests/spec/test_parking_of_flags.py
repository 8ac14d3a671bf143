"""Groups that operators hold are parked like others, and apart from what could go."""

from __future__ import annotations

import pytest

from dispatcher.core.events import DeadLetterConfirmed
from dispatcher.core.holds import HoldKind
from dispatcher.core.operators.stopped_groups import stopped_rows
from dispatcher.core.parking.policy import BLOCKED_MS, HELD_BY_OPERATORS
from dispatcher.wire.origin import origin_text
from tests.spec.flag_bench import said, why
from tests.spec.lane_bench import clause
from tests.spec.parking_bench import FIRST, ParkingBench


@pytest.mark.parametrize("flag", ["pause", "pin"])
def test_a_held_group_is_parked_apart_and_comes_back_in_order(flag: str) -> None:
    bench = ParkingBench(look_ahead=10)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.settle("one", "a1")
    bench.arrive("b1", "b2")
    if flag == "pause":
        said(bench, "groups.pause", group="a")
        bench.join("two")
    else:
        bench.join("away")
        said(bench, "groups.pin", group="a", consumer="away")
        bench.join("two")
        bench.die("away")
    bench.arrive(*(f"a{number}" for number in range(2, 10)))
    bench.run(BLOCKED_MS)
    assert bench.in_parking() == [f"a{number}" for number in range(2, 10)], "b2 is not behind them"
    assert bench.lane.state.parking[FIRST].consumer == HELD_BY_OPERATORS
    assert why(bench, "a") is (HoldKind.PAUSED if flag == "pause" else HoldKind.PIN_ABSENT)
    bench.arrive("c1", "a10")
    bench.run(1_000)
    assert bench.handed() == ["a1", "b1", "c1"], "nothing of it is read while nobody may have it"
    assert bench.in_parking()[-1] == "a10"
    if flag == "pause":
        said(bench, "groups.resume", group="a")
    else:
        said(bench, "groups.pin", group="a", undo=True)
    for name in ["b1", "b2", *(f"a{number}" for number in range(2, 11))]:
        bench.settle(bench.holder(name), name)
        bench.run()
    assert [name for name in bench.handed() if name.startswith("a")] == [f"a{n}" for n in range(1, 11)]
    assert not bench.lane.state.groups[b"a"].route


@pytest.mark.parametrize("decision", ["release", "skip", "drop"])
def test_a_stopped_group_is_parked_apart_and_decided_about_where_it_is(decision: str) -> None:
    clause("D-9a", "when the message is here")
    bench = ParkingBench(look_ahead=10, stops_failed=True)
    bench.join("one", prefetch=5)
    bench.arrive("a1")
    bench.fail("one", "a1", "no stock")
    bench.join("two")
    bench.arrive(*(f"a{number}" for number in range(2, 11)))
    bench.run(BLOCKED_MS)
    assert bench.in_parking() == [f"a{number}" for number in range(1, 11)]
    assert bench.lane.state.parking[FIRST].consumer == HELD_BY_OPERATORS
    bench.arrive("b1", "a11")
    bench.run(10_000)
    assert bench.handed() == ["a1", "b1"]
    assert bench.in_parking()[-1] == "a11"
    said(bench, f"dead.{decision}", group="a")
    bench.run()
    if decision == "release":
        bench.settle_each("one", (1,))
    bench.settle_each("one", range(2, 12))
    assert [int(name[1:]) for name in bench.handed() if name[0] == "a"] == [
        1, *([1] if decision == "release" else []), *range(2, 12)
    ]  # fmt: skip
    assert [reason for _, reason in bench.dead] == (["no stock"] if decision == "skip" else [])
    bench.step(*(DeadLetterConfirmed(message) for message in bench.lane.state.ending))
    bench.run(3_000)
    assert bench.deleted == [FIRST]


def test_where_one_of_a_group_is_out_at_a_time_what_is_read_waits_and_is_not_parked_again() -> None:
    bench = ParkingBench(look_ahead=20, stops_failed=True)
    bench.join("one", prefetch=5)
    bench.arrive("a1")
    bench.join("two")
    bench.arrive(*(f"a{number}" for number in range(2, 21)))
    bench.run(BLOCKED_MS)
    moved = len(bench.moved)
    for number in range(1, 21):
        bench.run(1_000)
        bench.settle("one", f"a{number}")
    bench.run()
    assert [name for name in bench.handed() if name[0] == "a"] == [f"a{n}" for n in range(1, 21)]
    assert len(bench.moved) == moved


def test_where_a_group_has_stopped_is_parked_before_the_rest_of_it() -> None:
    """What it got through another queue waits here too, and would fill the memory that reading needs."""
    bench = ParkingBench(weights=(1, 1), look_ahead=10, stops_failed=True, look_ahead_bytes=2_000)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.join("two")
    bench.arrive(*(f"a{number}" for number in range(2, 12)), inbound=1)
    bench.fail("one", "a1", "no stock")
    bench.run(BLOCKED_MS)
    assert sorted(bench.in_parking(), key=lambda name: int(name[1:])) == [f"a{n}" for n in range(1, 12)]
    assert bench.in_parking()[0] == "a1"
    said(bench, "dead.drop", group="a")
    bench.run()
    bench.settle_each("one", range(2, 12))
    assert bench.handed() == [f"a{number}" for number in range(1, 12)]


def test_what_is_held_and_fills_the_memory_moves_out_of_the_way_of_what_could_go() -> None:
    """Both are parked in the queue of what operators hold; one is resumed, and lies behind the other."""
    bench = ParkingBench(look_ahead=40, look_ahead_bytes=2_000, park_after_ms=1_000)
    bench.join("one")
    bench.arrive("a1", "b1")
    said(bench, "groups.pause", group="a")
    said(bench, "groups.pause", group="b")
    bench.arrive(*(f"a{number}" for number in range(2, 22)), *(f"b{number}" for number in range(2, 5)))
    bench.run(1_000)
    assert bench.in_parking()[-3:] == ["b2", "b3", "b4"]
    bench.settle("one", "a1", "b1")
    said(bench, "groups.resume", group="b")
    bench.run(1_000)
    assert bench.handed() == ["a1", "b1", "b2", "b3", "b4"]
    bench.settle("one", "b2", "b3", "b4")
    said(bench, "groups.resume", group="a")
    bench.run(1_000)
    bench.settle_each("one", range(2, 22))
    assert [name for name in bench.handed() if name[0] == "a"] == [f"a{number}" for number in range(1, 22)]


@pytest.mark.parametrize("decision", ["skip", "drop"])
def test_where_a_group_has_stopped_may_be_all_that_is_left_in_a_parking_queue(decision: str) -> None:
    """The next leader is told what to do with it before it has read it there."""
    clause("D-9a", "The last two take effect when the message is here")
    bench = ParkingBench(look_ahead=4, stops_failed=True)
    bench.join("one", prefetch=5)
    bench.arrive("a1")
    bench.join("two", prefetch=5)
    bench.arrive(*(f"a{number}" for number in range(2, 5)))
    bench.run(BLOCKED_MS)
    bench.settle_each("one", range(1, 4))
    bench.run()
    assert bench.handed()[-1] == "a4"
    bench.fail("one", "a4", "no stock")
    bench.run()
    queue, lane_epoch = bench.lane.state.inbounds[0].name, bench.lane.state.lane_epoch
    (row,) = stopped_rows(bench.lane.state, None)
    assert row["origin"] == origin_text(queue, (lane_epoch, 4)), "the place where its producer put it"
    bench.hold_reads = True
    bench.fail_over()
    said(bench, f"dead.{decision}", group="a")
    bench.run()
    assert not bench.dead
    bench.hold_reads = False
    bench.run()
    assert [reason for _, reason in bench.dead] == (["no stock"] if decision == "skip" else [])
    assert bench.handed().count("a4") == 1
