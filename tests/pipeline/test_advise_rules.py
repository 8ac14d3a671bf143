"""What is tried and what is recommended of it, without Spark: the rules one by one."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dispatcher.core.options import GroupWindow
from dispatcher.pipeline.advise import rules
from dispatcher.pipeline.advise.advice import LaneAdvice
from dispatcher.pipeline.advise.advice_text import as_text, remarks
from dispatcher.pipeline.advise.calibration import _in_order, _speeds
from dispatcher.pipeline.advise.lane_options import lane_options, policy_name
from dispatcher.pipeline.advise.measures import Measures, simulate
from dispatcher.pipeline.advise.run import AdviceResult, Advised
from dispatcher.pipeline.advise.sample import Sample
from dispatcher.pipeline.advise.spreading import pack
from dispatcher.pipeline.advise.sweeps import (
    Option,
    Point,
    Wanted,
    bucket_numbers,
    evened,
    numbers,
    weights_by_work,
)
from dispatcher.pipeline.advise.traffic import Delays, Scenario, Traffic
from tests.pipeline.queueing import FIFO, traffic

LITTLE = Wanted(
    consumers=(1, 2, 4, 8), prefetch=(1, 4), buckets=(64, None), policies=("exclusive",), weights=True
)


def measured(option: Option, **p99s_us: float | None) -> list[tuple[Point, Measures]]:
    """By value: its p99, the same for waits and in all; None: overloaded."""
    return [
        (
            Point(
                option, value, float(value) if value.isdigit() else None, replace(FIFO, consumers=place + 1)
            ),
            Measures(
                0.5, 1.0, us is None, wait_p99_us=us, wait_p99_high_us=us and us * 1.2, total_p99_us=us,
                queues_p99_us=() if us is None else (us,),
            ),
        )
        for place, (value, us) in enumerate((name.lstrip("_"), us) for name, us in p99s_us.items())
    ]  # fmt: skip


def value(point: Point | None) -> str | None:
    return point.value if point is not None else None


def test_so_few_consumers_that_the_target_is_held_for_sure() -> None:
    points = measured(Option.CONSUMERS, _1=None, _2=1_000.0, _4=800.0, _8=100.0)
    assert value(rules.best_consumers(points, 1_000)) == "4"  # of two the interval reaches beyond
    assert value(rules.best_consumers(points, 2_000)) == "2"
    assert rules.best_consumers(points, 50) is None


def test_without_a_target_so_few_that_more_hardly_help() -> None:
    points = measured(Option.CONSUMERS, _1=None, _2=1_000.0, _4=109.0, _8=100.0)
    assert value(rules.best_consumers(points, None)) == "4"
    assert rules.best_consumers(points[:1], None) is None


def test_so_little_prefetch_that_more_hardly_helps() -> None:
    points = measured(Option.PREFETCH, _1=200.0, _2=104.0, _5=100.0, _10=101.0)
    assert value(rules.best_prefetch(points)) == "2"


def test_so_few_buckets_that_none_are_hardly_better_and_fewer_than_groups() -> None:
    points = measured(Option.BUCKETS, _64=150.0, _256=108.0, _1024=101.0, exact=100.0)
    assert value(rules.best_buckets(points, groups=10_000)) == "256"
    assert value(rules.best_buckets(points, groups=200)) == "exact"


def test_another_policy_only_if_it_keeps_order_and_is_a_tenth_better() -> None:
    points = measured(Option.POLICY, exclusive=100.0, sequenced=95.0, concurrent=10.0)
    assert value(rules.best_policy(points, "exclusive")) == "exclusive"
    points = measured(Option.POLICY, exclusive=100.0, sequenced=85.0, concurrent=10.0)
    assert value(rules.best_policy(points, "exclusive")) == "sequenced"
    assert value(rules.best_policy(points, "concurrent")) == "concurrent"


def two_queues(weights: tuple[int, int]) -> tuple[Traffic, Scenario]:
    """High has three quarters of the work and most of the load."""
    came = traffic(0.97, 3_000, seed=37)
    both = [each._replace(inbound=int(n % 4 == 0)) for n, each in enumerate(came.arrivals)]
    return replace(came, inbounds=("high", "low"), arrivals=both), replace(FIFO, weights=weights)


def advised(came: Traffic, now: Scenario, target_us: int | None = None) -> LaneAdvice:
    advice = LaneAdvice(came, now, LITTLE, target_us)
    for scenarios in advice.rounds():
        advice.found |= {each: simulate(came, each) for each in scenarios}
    return advice


def test_another_value_is_better_only_if_the_intervals_are_apart() -> None:
    def found(low: float | None, high: float | None) -> Measures:
        return Measures(0.5, 1.0, False, wait_p99_us=50.0, wait_p99_low_us=low, wait_p99_high_us=high)

    now, overloaded = found(100.0, 200.0), Measures(1.0, 1.0, True)
    assert rules.is_better(now, found(50.0, 99.0))
    assert not rules.is_better(now, found(50.0, 101.0)), "they overlap"
    assert not rules.is_better(now, found(None, None)), "too few messages to be sure"
    assert rules.is_better(overloaded, found(None, None))
    assert not rules.is_better(now, overloaded)


def test_what_is_not_better_for_sure_stays_as_it_is() -> None:
    came = traffic(0.3, 3_000, seed=37, groups=[b"g%d" % n for n in range(100)])
    advice = advised(came, replace(FIFO, consumers=4, prefetch=4, policy="exclusive"))
    chosen = [line for line in advice.lines() if line.is_recommended]
    assert {line.point.option for line in chosen if line.is_current} == {
        Option.CONSUMERS, Option.PREFETCH, Option.BUCKETS, Option.POLICY,
    }  # fmt: skip
    assert len(chosen) == 4, "and so there is nothing to try together"
    fewer = advised(came, advice.current, target_us=60_000_000).recommended[Option.CONSUMERS]
    assert fewer.scenario.consumers < 4, "but a target says when fewer are enough"


def test_a_users_weights_are_left_alone_unless_others_are_asked_for() -> None:
    came, now = two_queues((1, 9))
    advice = LaneAdvice(came, now, replace(LITTLE, weights=False), None)
    for scenarios in advice.rounds():
        advice.found |= {each: simulate(came, each) for each in scenarios}
    assert {line.point.scenario.weights for line in advice.lines()} == {(1, 9)}
    assert Option.WEIGHTS not in advice.recommended


def test_weights_are_proposed_that_make_queues_wait_alike() -> None:
    came, now = two_queues((1, 9))
    assert weights_by_work(came) == (3, 1)
    advice = advised(came, now)
    chosen = advice.recommended[Option.WEIGHTS].scenario
    before, after = (advice.found[each].queues_p99_us for each in (now, chosen))
    assert max(before) > 2 * min(before)  # low goes first, so high waits
    assert max(after) < 0.9 * max(before)
    assert chosen.weights[0] > chosen.weights[1]
    tried = [line.point.value for line in advice.lines() if line.point.option is Option.WEIGHTS]
    assert tried[:3] == ["high:1 low:9", "high:1 low:1", "high:3 low:1"]
    assert len(tried) > 3  # evened out by what these showed


def test_evened_weights_go_towards_who_waits_longer() -> None:
    assert evened((1, 1), (100.0, 100.0)) == (1, 1)
    high, low = evened((1, 1), (300.0, 100.0))
    assert high > low >= 1
    assert evened((1, 1), (0.0, 0.0)) == (1, 1)


def test_what_can_not_keep_up_is_advised_around_more_consumers() -> None:
    came = traffic(3.0, 1_500, seed=41, groups=[b"g%d" % n for n in range(100)])
    advice = advised(came, replace(FIFO, consumers=2, policy="exclusive"), 400_000)
    assert advice.found[advice.current].is_overloaded
    enough = advice.recommended[Option.CONSUMERS].scenario.consumers
    assert enough in (4, 8)
    assert advice.base.consumers == enough
    assert [line.point.value for line in advice.lines() if line.point.option is Option.PREFETCH] == ["1", "4"]
    assert not any(
        line.measures.is_overloaded for line in advice.lines() if line.point.option is Option.BUCKETS
    )
    assert Option.RECOMMENDED in advice.recommended


def test_a_group_that_is_too_hot_is_helped_by_no_number() -> None:
    came = traffic(2.0, 1_000, seed=43, groups=[b"hot"])
    advice = advised(came, replace(FIFO, consumers=2, policy="exclusive"))
    assert Option.CONSUMERS not in advice.recommended
    assert Option.RECOMMENDED not in advice.recommended


def test_numbers_to_try() -> None:
    assert numbers("1..64", 1, 64) == (1, 2, 4, 8, 16, 32, 64)
    assert numbers("3..20,5", 1, 64) == (3, 5, 6, 12, 20)
    assert bucket_numbers("64, exact") == (64, None)
    assert bucket_numbers("exact") == (None,)


def test_the_lane_is_simulated_with_its_own_options() -> None:
    told = {
        "policy": "sequenced", "grouped": True, "tops_up": True, "look_ahead": 77, "cost": "measured",
        "group_idle_timeout_ms": 5_000, "dedup": {"window_ms": 1, "ids_max": 1}, "parking_queues": ["p"],
        "max_in_flight_per_group": None, "start_consumers": 9, "lane": "orders", "host": "h",
        "group_window": [2, None],
    }  # fmt: skip
    came = replace(traffic(0.5, 10, seed=1), options=told)
    made = lane_options(came, replace(FIFO, policy="sequenced", weights=(7,), buckets=64))
    assert (made.policy.tops_up, made.look_ahead, made.cost.value) == (True, 77, "measured")
    assert (made.group_idle_timeout_ms, made.inbounds, made.buckets) == (5_000, (("in", 7),), 64)
    assert (made.dedup, made.parking_queues, made.start_consumers) == (None, (), 0)
    assert lane_options(came, replace(FIFO, policy="exclusive")).policy.keeps_owner
    assert made.group_window == GroupWindow(2, None)
    assert lane_options(came, replace(FIFO, policy="concurrent")).group_window is None
    assert lane_options(replace(came, options={}), FIFO).group_window is None
    assert policy_name(told) == "sequenced"
    assert policy_name(told | {"grouped": False}) == "none"


def test_speeds_differ_only_where_that_is_sure() -> None:
    rows = [{"inbound": "in", "consumer": ("a", "b", "c")[n % 3]} for n in range(300)]
    work = {n: (2_000.0 if n % 3 == 2 else 1_000.0) + n % 7 for n in range(300)}
    speeds = _speeds(rows, work)
    assert speeds["a"] / speeds["c"] == pytest.approx(2, rel=0.02)
    assert sum(speeds.values()) / 3 == pytest.approx(1)
    alike = {n: float(100 + n * 7919 % 900) for n in range(300)}
    assert set(_speeds(rows, alike).values()) == {1.0}
    assert _in_order(speeds, rows[2:]) == (speeds["c"], speeds["a"], speeds["b"])


def test_a_scenario_is_the_same_however_often_it_is_simulated() -> None:
    came = traffic(1.5, 500, seed=47, groups=[b"g%d" % n for n in range(20)])
    scenario = replace(FIFO, consumers=3, policy="sequenced", prefetch=3)
    assert simulate(came, scenario) == simulate(came, scenario)


def test_workers_need_nothing_installed(tmp_path: Path) -> None:
    """What they are sent simulates in a Python that has nothing but its own library."""
    package = tmp_path / "sent.zip"
    pack(package)
    program = (
        "import pickle, sys; sys.path.insert(0, sys.argv[1])\n"
        "from dispatcher.pipeline.advise.measures import simulate\n"
        "sys.stdout.buffer.write(pickle.dumps(simulate(*pickle.load(sys.stdin.buffer))))\n"
    )
    came = traffic(1.5, 300, seed=53, groups=[b"a", b"b", b"c"])
    work = (came, replace(FIFO, consumers=2, policy="exclusive"))
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(package)],
        input=pickle.dumps(work), capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert pickle.loads(answer.stdout) == simulate(*work)


def test_it_is_said_what_makes_advice_less_sure() -> None:
    came = traffic(3.0, 600, seed=41, groups=[b"g%d" % n for n in range(100)])
    rows = [
        {"at_us": a.at_us, "dispatched_us": a.at_us + 900_000_000, "settled_us": None} for a in came.arrivals
    ]
    sample = Sample("orders", {}, rows, 0, len(rows), 0, Delays(), [])
    few = advised(came, replace(FIFO, consumers=2, policy="exclusive"))
    (remark,) = remarks(Advised(sample, few))
    assert "can't keep up" in remark
    assert f"{few.base.consumers} consumers" in remark
    enough = advised(replace(came, options={"look_ahead": 1}), replace(FIFO, consumers=8, policy="exclusive"))
    off, full = remarks(Advised(sample, enough))
    assert off.startswith(
        "the ledger measured a p99 of 900.00 s from received to dispatched, the simulation "
    )
    assert full.startswith("its look-ahead was full")
    text = as_text(
        AdviceResult([Advised(sample, advised(came, replace(FIFO, policy="none")))], ["lane x: no"])
    )
    assert "left out: lane x: no" in text
    hot = traffic(2.0, 500, seed=43, groups=[b"hot"])
    hopeless = advised(hot, replace(FIFO, consumers=2, policy="exclusive"), 1_000_000)
    said = as_text(AdviceResult([Advised(sample, hopeless)], []))
    assert (
        "no number of consumers that was tried keeps up: the hottest group alone needs 2.0 × the time" in said
    )
