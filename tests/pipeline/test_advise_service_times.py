"""What messages took is found again from when they came to their consumer and were settled."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from dispatcher.pipeline.advise.lane_options import lane_options
from dispatcher.pipeline.advise.service_times import Handled, service_times
from dispatcher.pipeline.advise.simulation import Simulation
from tests.pipeline.queueing import FIFO, traffic


@pytest.mark.parametrize("at_a_time", [1, 4, 10])
@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("busy", [0.3, 0.9])
def test_how_many_are_in_work_and_what_each_took_is_found_again(
    at_a_time: int, is_constant: bool, busy: float
) -> None:
    groups: list[bytes | None] = [b"g%d" % n for n in range(200)]
    came = traffic(busy * at_a_time, 3_000, seed=31, is_constant=is_constant, groups=groups)
    came = replace(came, at_a_time=at_a_time)
    scenario = replace(FIFO, prefetch=50, policy="exclusive")
    course = Simulation(came, lane_options(came, scenario), consumers=1, prefetch=50).run()
    found = service_times(
        (
            Handled(n, "i1", (arrival.group or b"").decode(), there, done, done)
            for n, (arrival, there, done) in enumerate(
                zip(came.arrivals, course.dispatched_us, course.settled_us, strict=True)
            )
        ),
        50,
    )
    error = sum(abs(found.work_us[n] - a.demand_us) for n, a in enumerate(came.arrivals))
    assert error <= 0.08 * sum(a.demand_us for a in came.arrivals), found.at_a_time
    assert found.at_a_time <= at_a_time
    if busy == 0.9:
        assert found.at_a_time >= 0.8 * at_a_time


def test_what_is_settled_together_shares_the_time() -> None:
    hands = [Handled(n, "i1", None, 0, 1_000 * (n // 4 + 1), 1_000 * (n // 4 + 1)) for n in range(40)]
    Random(1).shuffle(hands)
    assert set(service_times(hands, 1).work_us.values()) == {250.0}
