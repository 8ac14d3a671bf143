"""The simulation against queueing theory: where a formula or an exact recursion is known, it agrees."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from random import Random

import pytest

from dispatcher.core.optional.measured_cost import MeasuredWork
from dispatcher.pipeline.advise.lane_options import lane_options
from dispatcher.pipeline.advise.measures import Measures, bound, measures, percentile, simulate, spread
from dispatcher.pipeline.advise.simulation import Course, Simulation
from dispatcher.pipeline.advise.traffic import Delays, SampledArrival, Scenario, Traffic
from tests.pipeline import queueing
from tests.pipeline.queueing import FIFO, traffic


def course(traffic: Traffic, scenario: Scenario) -> Course:
    options = lane_options(traffic, scenario)
    simulation = Simulation(traffic, options, consumers=scenario.consumers, prefetch=scenario.prefetch)
    return simulation.run()


def waits(traffic: Traffic, scenario: Scenario) -> list[int]:
    begun = course(traffic, scenario).begun_us
    return [since - arrival.at_us for since, arrival in zip(begun, traffic.arrivals, strict=True)]


@pytest.mark.parametrize("policy", ["none", "concurrent"])
@pytest.mark.parametrize("consumers", [1, 3, 16])
def test_without_groups_it_is_first_come_first_served_to_the_microsecond(policy: str, consumers: int) -> None:
    came = traffic(0.9 * consumers, 2_000, seed=consumers)
    scenario = replace(FIFO, consumers=consumers, policy=policy)
    assert course(came, scenario).begun_us == queueing.first_come_first_served(came, consumers)


@pytest.mark.parametrize(("consumers", "load"), [(1, 0.5), (4, 2.8), (10, 8.0)])
def test_mmc_waits_as_erlang_says(consumers: int, load: float) -> None:
    found = waits(traffic(load, 10_000, seed=3), replace(FIFO, consumers=consumers))
    assert sum(found) / len(found) == pytest.approx(queueing.mm_mean_wait_us(consumers, load), rel=0.06)
    waited = sum(wait > 0 for wait in found) / len(found)
    assert waited == pytest.approx(queueing.erlang_c(consumers, load), rel=0.03)
    longest = percentile(sorted(found), 95)
    assert queueing.mm_waits_longer(consumers, load, longest) == pytest.approx(0.05, rel=0.15)


@pytest.mark.parametrize("load", [0.4, 0.7])
def test_md1_waits_as_pollaczek_and_khinchine_say(load: float) -> None:
    found = waits(traffic(load, 8_000, seed=5, is_constant=True), FIFO)
    assert sum(found) / len(found) == pytest.approx(queueing.md_mean_wait_us(load), rel=0.05)


def test_one_group_is_one_consumers_however_many_there_are() -> None:
    came = traffic(0.7, 2_000, seed=5, is_constant=True, groups=[b"g"])
    scenario = replace(FIFO, consumers=8, policy="exclusive")
    assert course(came, scenario).begun_us == queueing.first_come_first_served(came, 1)


def test_the_hottest_group_bounds_what_more_consumers_can_do() -> None:
    came = traffic(3.0, 3_000, seed=7, groups=[b"hot"] * 4 + [b"g%d" % n for n in range(4)])
    grouped = replace(FIFO, consumers=8, policy="exclusive")
    assert bound(came, grouped) == pytest.approx(
        1.5, rel=0.05
    )  # half of three consumers' work is one group's
    assert all(simulate(came, replace(grouped, consumers=n)).is_overloaded for n in (8, 64))
    assert not simulate(came, replace(grouped, policy="none")).is_overloaded
    cool = traffic(1.6, 3_000, seed=7, groups=[b"hot"] * 4 + [b"g%d" % n for n in range(4)])
    hot = replace(cool, arrivals=[each._replace(group=b"hot") for each in cool.arrivals])
    assert not simulate(cool, grouped).is_overloaded
    assert simulate(hot, grouped).is_overloaded
    assert simulate(cool, replace(grouped, buckets=1)).is_overloaded  # every group is one bucket


def test_what_can_not_be_kept_up_with_grows_and_is_not_simulated_for_ever() -> None:
    assert simulate(traffic(1.2, 2_000, seed=1), FIFO) == Measures(
        utilisation=1.0, throughput_per_s=pytest.approx(100, rel=0.01), is_overloaded=True
    )
    # Every consumer could do its part; but one owns the four groups that came first.
    uneven = traffic(1.5, 2_000, seed=2, groups=[b"a", b"b", b"c", b"d"])
    options = replace(FIFO, consumers=2, policy="exclusive", prefetch=10)
    slow = replace(uneven, speeds=(1.9, 0.1))
    assert bound(slow, options) < 1
    assert simulate(slow, options).is_overloaded
    assert not simulate(uneven, options).is_overloaded


@pytest.mark.parametrize("policy", ["none", "exclusive", "sequenced"])
def test_more_consumers_are_never_worse(policy: str) -> None:
    came = traffic(3.0, 2_000, seed=11, groups=[b"g%d" % n for n in range(200)])
    found = [
        simulate(came, replace(FIFO, consumers=n, policy=policy, prefetch=2)).wait_p99_us
        for n in (4, 6, 8, 16)
    ]
    assert all(more <= fewer * 1.02 for fewer, more in pairwise(each for each in found if each is not None))
    assert found[0] != found[-1]


def test_order_within_a_group_is_kept() -> None:
    came = traffic(2.5, 1_500, seed=13, groups=[b"g%d" % n for n in range(20)])
    for policy in ("exclusive", "sequenced"):
        for buckets in (None, 8):
            found = course(came, replace(FIFO, consumers=4, policy=policy, prefetch=3, buckets=buckets))
            last: dict[bytes | None, int] = {}
            for arrival, begun in zip(came.arrivals, found.begun_us, strict=True):
                assert begun >= last.get(arrival.group, 0)
                last[arrival.group] = begun
            assert most_at_a_time(found) <= 12


def test_nobody_has_more_than_its_prefetch() -> None:
    came = traffic(3.9, 1_000, seed=13)
    assert most_at_a_time(course(came, replace(FIFO, consumers=4, prefetch=3))) == 12


def most_at_a_time(found: Course) -> int:
    changes = [(at, 1) for at in found.dispatched_us] + [(at, -1) for at in found.settled_us]
    return max(accumulate(change for _, change in sorted(changes)))


def test_delays_add_to_waits_and_keep_nobody_busy() -> None:
    came = Traffic(
        "orders",
        ("in",),
        [SampledArrival(0, 0, None, 1, 1, 1_000), SampledArrival(0, 0, None, 1, 1, 1_000)],
        10_000,
    )
    late = replace(came, delays=Delays(decide_us=10, commit_us=200, way_us=3_000))
    found = course(late, replace(FIFO, prefetch=2))
    assert found.dispatched_us == [10, 10]
    assert found.begun_us == [3_210, 4_210]  # the second one's way is over long before
    assert found.settled_us == [7_210, 8_210]
    alone = course(late, FIFO)
    assert alone.dispatched_us == [10, 7_210]  # with a prefetch of 1 it goes when the settle is here


def test_a_faster_consumer_takes_less_time() -> None:
    came = traffic(0.5, 2_000, seed=17)
    slow, fast = (course(replace(came, speeds=(speed,)), FIFO).busy_us for speed in (1.0, 2.0))
    assert fast == pytest.approx(slow / 2, rel=0.001)


def test_queues_share_by_weight_while_both_have_a_backlog() -> None:
    came = traffic(2.0, 4_000, seed=19)
    both = [each._replace(inbound=n % 2, at_us=each.at_us // 100) for n, each in enumerate(came.arrivals)]
    backlog = replace(came, inbounds=("high", "low"), arrivals=both, is_whole=True)
    begun = course(backlog, replace(FIFO, weights=(9, 1))).begun_us
    first = sorted(range(len(begun)), key=begun.__getitem__)[1_000:2_000]
    assert sum(1 for n in first if both[n].inbound == 0) == pytest.approx(900, abs=5)


def test_what_is_behind_a_look_ahead_full_of_blocked_messages_goes_on() -> None:
    """As parking lets it: without, the second group would wait for the first."""
    blocked = [SampledArrival(n, 0, b"stuck", 1, 1, 1_000_000) for n in range(50)]
    came = Traffic("orders", ("in",), [*blocked, SampledArrival(60, 0, b"free", 1, 1, 1)], 60_000_000)
    narrow = replace(came, options={"look_ahead": 10})
    found = course(narrow, replace(FIFO, consumers=2, policy="exclusive"))
    assert found.begun_us[-1] < 1_000_000


def test_the_spread_holds_the_truth_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(60):
        random = Random(seed)
        low_high = spread([random.random() for _ in range(2_000)], 90)
        assert low_high is not None
        hits += low_high[0] <= 0.9 <= low_high[1]
    assert hits >= 52
    assert spread([1.0] * 50, 99) is None


def test_a_consumer_that_works_on_several_is_as_good_as_several() -> None:
    came = replace(traffic(2.7, 2_000, seed=29), at_a_time=3)
    assert course(came, replace(FIFO, prefetch=1_000)).begun_us == queueing.first_come_first_served(came, 3)
    assert simulate(came, replace(FIFO, prefetch=2)).is_overloaded  # it can't work on what it does not have
    found = simulate(came, replace(FIFO, prefetch=1_000))
    assert found.utilisation == pytest.approx(0.9, rel=0.03)
    one_group = replace(came, arrivals=[each._replace(group=b"g") for each in came.arrivals])
    assert simulate(one_group, replace(FIFO, prefetch=1_000, policy="exclusive")).is_overloaded


def test_the_lanes_own_timers_run() -> None:
    """Groups a and c are one consumer's; after they have rested for long enough they are anybody's."""
    three = [SampledArrival(n * 100, 0, group, 1, 1, 10) for n, group in enumerate((b"a", b"b", b"c"))]
    long = [SampledArrival(60_000_000 + n, 0, group, 1, 1, 1_000_000) for n, group in enumerate((b"a", b"c"))]
    came = Traffic("orders", ("in",), [*three, *long], 63_000_000)
    owned = replace(FIFO, consumers=2, policy="exclusive", prefetch=5)
    assert waits(came, owned)[-1] == 999_999
    assert waits(replace(came, options={"group_idle_timeout_ms": 5_000}), owned)[-1] == 0


def test_what_takes_too_many_steps_is_cut_off() -> None:
    came = traffic(0.5, 50, seed=1)
    simulation = Simulation(came, lane_options(came, FIFO), consumers=1, prefetch=1)
    simulation._happen = lambda now_us: None  # type: ignore[method-assign]
    cut = simulation.run()
    assert cut.is_cut
    assert measures(came, FIFO, cut).is_overloaded


def test_costs_are_measured_for_each_type() -> None:
    mixed = [
        SampledArrival(n * 10_000, 0, None, 1, 1, 1_000 * (1 + n % 4), b"even" if n % 2 else b"odd")
        for n in range(400)
    ]  # fmt: skip
    came = Traffic("orders", ("in",), mixed, 4_000_000, options={"cost": "measured"})
    simulation = Simulation(came, lane_options(came, FIFO), consumers=1, prefetch=1)
    simulation.run()
    learnt = simulation._lane.state.features[MeasuredWork].kinds_ms
    assert learnt[0, b"odd"] == pytest.approx(2, abs=0.8)
    assert learnt[0, b"even"] == pytest.approx(3, abs=0.8)
    assert len(learnt) == 2
