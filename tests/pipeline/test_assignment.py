"""Assignments against an optimum found by trying all, and against what is proven of the method."""

from __future__ import annotations

from itertools import accumulate, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.pipeline.assignment import UNOWNED, Assignment, Task, assign, forced, lower_bound
from dispatcher.pipeline.plan import Wishes

ALMOST = 1 + 1e-6


def task(costs: list[int], owners: list[int], speeds: list[float], fixed: list[int] | None = None) -> Task:
    return Task(costs, owners, [owner != UNOWNED for owner in owners], speeds, fixed or ())


def makespan(of: Task, targets: tuple[int, ...] | list[int]) -> float:
    loads = of.fixed_loads()
    for cost, target in zip(of.costs, targets, strict=True):
        loads[target] += cost
    return max(load / speed for load, speed in zip(loads, of.speeds, strict=True))


def moves(of: Task, targets: tuple[int, ...] | list[int]) -> int:
    changed = zip(of.owners, targets, of.is_owned, strict=True)
    return sum(owned and owner != target for owner, target, owned in changed)


def every_assignment(of: Task) -> list[tuple[float, int]]:
    places = range(len(of.speeds))
    return [(makespan(of, t), moves(of, t)) for t in product(places, repeat=len(of.costs))]


def checked(of: Task, found: Assignment) -> Assignment:
    """Every group is assigned once, and the numbers are those of the targets."""
    assert len(found.targets) == len(of.costs)
    assert set(found.targets) <= set(range(len(of.speeds)))
    assert found.makespan == pytest.approx(makespan(of, found.targets))
    assert found.moves == moves(of, found.targets)
    assert found.makespan * ALMOST >= lower_bound(of)
    return found


@st.composite
def tasks(
    draw: st.DrawFn,
    *,
    groups: int,
    consumers: int,
    equal: bool = False,
    free: bool = True,
    fixed: bool = False,
) -> Task:  # fmt: skip
    speed = st.just(1.0) if equal else st.sampled_from([0.5, 0.9, 1.0, 1.7, 4.0])
    speeds = draw(st.lists(speed, min_size=1, max_size=consumers))
    owner = st.integers(UNOWNED if free else 0, len(speeds) - 1)
    costs = draw(st.lists(st.integers(0, 1_000), min_size=1, max_size=groups))
    loads = [draw(st.sampled_from([0, 0, 300, 2_000])) for _ in speeds] if fixed else None
    return task(costs, [draw(owner) for _ in costs], speeds, loads)


@given(tasks(groups=60, consumers=6, free=False, fixed=True), st.sampled_from([0.0, 0.05, 0.3]))
def test_never_worse_than_now_and_no_move_for_nothing(of: Task, tolerance: float) -> None:
    found = checked(of, assign(of, tolerance=tolerance))
    now = makespan(of, list(of.owners))
    assert found.makespan <= now * ALMOST
    if found.moves:
        assert found.makespan < now
    if now <= lower_bound(of) * (1 + tolerance):
        assert found.moves == 0


@given(tasks(groups=7, consumers=3, equal=True))
@settings(max_examples=60)
def test_on_equal_consumers_within_a_third_of_the_optimum(of: Task) -> None:
    """Graham, 1969: longest processing time first is within 4/3 − 1/(3m)."""
    found = checked(of, assign(of))
    best = min(span for span, _ in every_assignment(of))
    assert found.makespan <= best * (4 / 3 - 1 / (3 * len(of.speeds))) * ALMOST


@given(tasks(groups=6, consumers=3))
@settings(max_examples=60)
def test_on_unequal_consumers_within_twice_the_optimum(of: Task) -> None:
    """Gonzalez, Ibarra and Sahni, 1977: below 2 on uniform machines."""
    found = checked(of, assign(of))
    assert found.makespan <= 2 * min(span for span, _ in every_assignment(of)) * ALMOST


@given(tasks(groups=7, consumers=2, free=False))
@settings(max_examples=60)
def test_moves_are_the_fewest_where_one_is_enough(of: Task) -> None:
    """Where what is reached can be reached with one move it takes one."""
    found = checked(of, assign(of))
    needed = min(count for span, count in every_assignment(of) if span <= found.makespan * ALMOST)
    if needed <= 1:
        assert found.moves == needed


@given(tasks(groups=40, consumers=5, free=False), st.integers(0, 5))
def test_no_more_moves_than_are_allowed(of: Task, allowed: int) -> None:
    found = checked(of, assign(of, moves_max=allowed))
    assert found.moves <= allowed
    assert found.makespan <= makespan(of, list(of.owners)) * ALMOST


@given(tasks(groups=40, consumers=5))
def test_groups_that_nobody_has_go_to_somebody_and_are_no_moves(of: Task) -> None:
    found = checked(of, assign(of, moves_max=0))
    assert [t for t, o in zip(found.targets, of.owners, strict=True) if o != UNOWNED] == [
        owner for owner in of.owners if owner != UNOWNED
    ]


def test_who_takes_no_part_loses_its_groups() -> None:
    of = Task([5, 5, 1, 1], [UNOWNED, UNOWNED, 0, 1], [True, False, True, True], [1.0, 1.0])
    assert forced(of) == 1
    found = checked(of, assign(of, moves_max=1))
    assert (found.makespan, found.moves) == (6, 1)


def test_a_faster_consumer_gets_more() -> None:
    of = task([1] * 40, [0] * 40, [1.0, 3.0])
    found = checked(of, assign(of))
    assert (found.makespan, found.moves) == (lower_bound(of), 30)


def test_the_largest_groups_move_because_they_are_the_fewest() -> None:
    of = task([40, 30, 20, 10, *[1] * 100], [0] * 104, [1.0, 1.0])
    found = checked(of, assign(of))
    assert found.makespan == lower_bound(of) == 100
    moved = [cost for cost, target in zip(of.costs, found.targets, strict=True) if target]
    assert sorted(moved, reverse=True)[:4] == [40, 30, 20, 10]


def test_what_does_not_count_is_not_worth_a_move() -> None:
    of = task([50, 49, 1, 1, 1], [0, 1, 0, 0, 0], [1.0, 1.0])
    assert assign(of, tolerance=0.05).moves == 0
    exact = checked(of, assign(of))
    assert (exact.makespan, exact.moves) == (51, 2)


def test_a_hundred_thousand_groups_by_zipf_take_no_time() -> None:
    """All of one consumer's, and as few move as can."""
    costs = [1_000_000 // (rank + 1) for rank in range(100_000)]
    of = task(costs, [0] * len(costs), [1.0, 1.0, 0.5, 2.0])
    found = assign(of, tolerance=0.05)
    allowed = lower_bound(of) * 1.05
    assert found.makespan <= allowed * ALMOST
    gone = accumulate(costs)  # the largest first: with fewer it can't be
    total = sum(costs)
    assert found.moves == 1 + next(n for n, cost in enumerate(gone) if total - cost <= allowed * ALMOST)


@pytest.mark.parametrize("skew", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("speeds", [[1.0] * 16, [0.5, 0.8, 1.0, 1.0, 1.3, 2.5]], ids=["equal", "unequal"])
def test_the_busiest_is_within_a_twentieth_of_what_a_linear_program_allows(
    skew: float, speeds: list[float]
) -> None:
    """Of 3,000 groups that start anywhere, on consumers that keep some load, with `plan`'s tolerance."""
    rng = Random(f"{skew} {len(speeds)}")
    costs = [round(1e6 / (rank + 1) ** skew * rng.uniform(0.5, 1.5)) for rank in range(3_000)]
    owners = [rng.randrange(len(speeds)) for _ in costs]
    of = task(costs, owners, speeds, [round(sum(costs) / 100 * rng.random()) for _ in speeds])
    found = checked(of, assign(of, tolerance=Wishes().tolerance))
    assert found.makespan <= 1.05 * least_fractional(of) * ALMOST


def least_fractional(of: Task) -> float:
    """The optimum of the linear program in which groups may be divided: minimise T where each group's parts
    `x` add up to 1, and the load of each consumer is at most its speed times T. A solution of the program and
    one of its dual with the same value prove it."""
    fixed, speed = of.fixed_loads(), sum(of.speeds)
    best = (sum(of.costs) + sum(fixed)) / speed
    x = [(of.speeds[c] * best - fixed[c]) / sum(of.costs) for c in range(len(of.speeds))]  # of every group
    assert min(x) >= 0
    assert sum(x) == pytest.approx(1)
    loads = [fixed[c] + sum(cost * x[c] for cost in of.costs) for c in range(len(of.speeds))]
    assert max(load / each for load, each in zip(loads, of.speeds, strict=True)) == pytest.approx(best)
    price = 1 / speed  # of a consumer's work; a group's is its cost times the least of these prices
    assert sum(price * each for each in of.speeds) == pytest.approx(1)
    assert sum(price * cost for cost in of.costs) + sum(price * load for load in fixed) == pytest.approx(best)
    return best
