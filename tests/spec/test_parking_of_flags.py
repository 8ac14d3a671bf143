"""Groups that operators hold are parked like others, and apart from what could go."""

from __future__ import annotations

import pytest

from dispatcher.core.parking import BLOCKED_MS, HELD
from tests.spec.flag_bench import said
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
    assert bench.lane.state.parking[FIRST].consumer == HELD
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
