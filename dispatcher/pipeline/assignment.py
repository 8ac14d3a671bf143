"""Which consumer should have which group: the busiest one as little as possible, then few moves.

Minimising the longest of several loads is NP-hard. Longest processing time first is at most a third above the
optimum on equal machines, but from nothing it moves nearly every group. So bisection looks for a limit of the
load: each consumer above it gives away only as much as is too much. Longest processing time first gives one
more candidate. Of all candidates with the least longest load the one with the fewest moves is taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

#: In the place of an owner: no consumer of the plan has the group.
UNOWNED: Final = -1
#: Loads this close to each other, relatively, are the same.
_EQUAL: Final = 1e-9
#: The least makespan is sought as exactly as this, relatively, or a tenth of what does not count.
_EXACT: Final = 1e-4


class Task(NamedTuple):
    """The groups, by their places: the cost of each (µs of a consumer with speed 1), and its owner now (the
    place of a consumer, or UNOWNED); and the consumers' speeds. `is_owned`: the group has an owner, so giving
    it to another consumer counts as a move, also if its owner is not in the plan. `fixed`: the load that each
    consumer has besides, at the same measure, and keeps."""

    costs: Sequence[float]
    owners: Sequence[int]
    is_owned: Sequence[bool]
    speeds: Sequence[float]
    fixed: Sequence[float] = ()

    def fixed_loads(self) -> list[float]:
        """One for each consumer."""
        return list(self.fixed) or [0.0] * len(self.speeds)


class Assignment(NamedTuple):
    """For each group the place of its consumer; the longest time that a consumer needs, in µs; how many
    groups leave their owners."""

    targets: list[int]
    makespan: float
    moves: int


def assign(task: Task, *, tolerance: float = 0.0, moves_max: int | None = None) -> Assignment:
    """The assignment with the fewest moves of those whose makespan is at most `tolerance` (a share of it)
    above the least one found. Groups that no consumer of the plan has are always given to one: `moves_max`
    must allow for these (`forced`)."""
    filled, bound = _filled(task), lower_bound(task)
    found = [filled]
    if filled.makespan <= bound * (1 + tolerance) * (1 + _EQUAL):
        return filled
    held = _Held(task)

    def repair(makespan: float) -> bool:
        repaired = [each for shed in _SHEDS if (each := held.repaired(makespan, shed)) is not None]
        allowed = [each for each in repaired if moves_max is None or each.moves <= moves_max]
        found.extend(allowed)
        return bool(allowed)

    if repair(bound * (1 + tolerance)):  # nothing can be better by more than what does not count
        return _fewest_moves(found, bound * (1 + tolerance))
    from_nothing = _kept(task, _from_nothing(task))
    if moves_max is None or from_nothing.moves <= moves_max:
        found.append(from_nothing)
    low, high = bound * (1 + tolerance), filled.makespan
    while high - low > max(_EXACT, tolerance / 10) * high:
        middle = (low + high) / 2
        low, high = (low, middle) if repair(middle) else (middle, high)
    enough = min(each.makespan for each in found) * (1 + tolerance)
    repair(enough)
    return _fewest_moves(found, enough)


def _fewest_moves(found: list[Assignment], makespan: float) -> Assignment:
    enough = makespan * (1 + 2 * _EQUAL)
    return min(
        (each for each in found if each.makespan <= enough), key=lambda each: (each.moves, each.makespan)
    )


def lower_bound(task: Task) -> float:
    """No assignment has a smaller makespan: all of it shared out evenly, the largest group at the fastest
    consumer, and what a consumer keeps."""
    fixed = task.fixed_loads()
    return max(
        (sum(task.costs) + sum(fixed)) / sum(task.speeds),
        max(task.costs, default=0.0) / max(task.speeds),
        max(load / speed for load, speed in zip(fixed, task.speeds, strict=True)),
    )


def forced(task: Task) -> int:
    """How many groups must leave an owner that takes no part."""
    return sum(owned and owner == UNOWNED for owner, owned in zip(task.owners, task.is_owned, strict=True))


def _filled(task: Task) -> Assignment:
    """All consumers keep their groups; the other groups go where they are done first."""
    homeless = [group for group, owner in enumerate(task.owners) if owner == UNOWNED]
    return _placed(task, list(task.owners), homeless)


def _from_nothing(task: Task) -> list[int]:
    """Longest processing time first, for all groups."""
    everything = list(range(len(task.costs)))
    return _placed(task, [UNOWNED] * len(task.costs), everything).targets


def _placed(task: Task, targets: list[int], groups: list[int]) -> Assignment:
    """Give these groups, the costliest first, each to the consumer that is done with it first."""
    _place(task, targets, _loads(task, targets), groups)
    return _measured(task, targets)


def _place(task: Task, targets: list[int], loads: list[float], groups: list[int]) -> float:
    """The same, where the loads are known; returns the makespan."""
    costs = task.costs
    pace = [1 / speed for speed in task.speeds]
    times = [load * each for load, each in zip(loads, pace, strict=True)]
    for group in sorted(groups, key=lambda group: -costs[group]):
        cost = costs[group]
        ends = [time + cost * each for time, each in zip(times, pace, strict=True)]
        first = min(ends)
        target = ends.index(first)
        times[target] = first
        targets[group] = target
    return max(times)


def _loads(task: Task, targets: Sequence[int]) -> list[float]:
    loads = task.fixed_loads()
    for cost, target in zip(task.costs, targets, strict=True):
        if target != UNOWNED:
            loads[target] += cost
    return loads


def _measured(task: Task, targets: list[int]) -> Assignment:
    loads = _loads(task, targets)
    moves = sum(
        owned and target != owner
        for target, owner, owned in zip(targets, task.owners, task.is_owned, strict=True)
    )
    return Assignment(
        targets, max(load / speed for load, speed in zip(loads, task.speeds, strict=True)), moves
    )


# -- from the present owners --

_Shed = Callable[[list[float], float], Iterator[int]]


class _Held:
    """The groups that each consumer has, the costliest first."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._homeless: list[int] = []
        self._groups: list[list[int]] = [[] for _ in task.speeds]
        for group in sorted(range(len(task.costs)), key=lambda group: -task.costs[group]):
            owner = task.owners[group]
            (self._groups[owner] if owner != UNOWNED else self._homeless).append(group)
        self._costs = [[task.costs[group] for group in groups] for groups in self._groups]
        self._loads = [
            sum(costs, fixed) for costs, fixed in zip(self._costs, task.fixed_loads(), strict=True)
        ]

    def repaired(self, makespan: float, shed: _Shed) -> Assignment | None:
        """Consumers that need more than this time give groups away; None: then others would need more than
        it."""
        task = self._task
        targets, homeless, loads = list(task.owners), list(self._homeless), list(self._loads)
        for consumer, (groups, costs) in enumerate(zip(self._groups, self._costs, strict=True)):
            excess = loads[consumer] - makespan * task.speeds[consumer] * (1 + _EQUAL)
            if excess > 0:
                for place in shed(costs, excess):
                    targets[groups[place]] = UNOWNED
                    homeless.append(groups[place])
                    loads[consumer] -= costs[place]
        if _place(task, targets, loads, homeless) > makespan * (1 + 2 * _EQUAL):
            return None
        return _returned(task, targets, makespan)


def _shed_largest(costs: list[float], excess: float) -> Iterator[int]:
    """The fewest groups that cost `excess` together: the largest, the last one no larger than it has to be.
    `costs` fall."""
    sums = list(accumulate(costs))
    if not costs or excess >= sums[-1]:
        yield from range(len(costs))
        return
    last = min(bisect_left(sums, excess), len(costs) - 1)
    yield from range(last)
    rest = excess - (sums[last - 1] if last else 0.0)
    yield _smallest_of(costs, rest, last)


def _smallest_of(costs: list[float], least: float, first: int) -> int:
    """The place of the smallest cost that is at least `least`, from `first` on; `first` if there is none."""
    low, high = first, len(costs)
    while high - low > 1:
        middle = (low + high) // 2
        if costs[middle] >= least:
            low = middle
        else:
            high = middle
    return low


def _shed_smallest(costs: list[float], excess: float) -> Iterator[int]:
    """What does not fit any more after the larger ones."""
    room = sum(costs) - excess
    for place, cost in enumerate(costs):
        if cost <= room:
            room -= cost
        else:
            yield place


_SHEDS: Final = (_shed_largest, _shed_smallest)


def _kept(task: Task, targets: list[int]) -> Assignment:
    """The same loads at other consumers, as far as these are equally fast and keep as much, so that more
    groups stay."""
    stays: dict[tuple[int, int], int] = {}
    kinds = list(zip(task.speeds, task.fixed_loads(), strict=True))
    for group, owner in enumerate(task.owners):
        if owner != UNOWNED and kinds[owner] == kinds[targets[group]]:
            stays[targets[group], owner] = stays.get((targets[group], owner), 0) + 1
    renamed: dict[int, int] = {}
    taken: set[int] = set()
    for (load, owner), _ in sorted(stays.items(), key=lambda item: -item[1]):
        if load not in renamed and owner not in taken:
            renamed[load] = owner
            taken.add(owner)
    for load, kind in enumerate(kinds):
        if load not in renamed:
            free = (c for c, other in enumerate(kinds) if c not in taken and other == kind)
            renamed[load] = next(free)
            taken.add(renamed[load])
    named = [renamed[target] for target in targets]
    return _returned(task, named, _measured(task, named).makespan)


def _returned(task: Task, targets: list[int], makespan: float) -> Assignment:
    """Groups go back to their owners where no owner then needs more than this time; small ones first."""
    loads, costs = _loads(task, targets), task.costs
    rooms = [makespan * speed * (1 + _EQUAL) for speed in task.speeds]
    moved = [g for g, owner in enumerate(task.owners) if owner != UNOWNED and targets[g] != owner]
    for group in sorted(moved, key=costs.__getitem__):
        owner = task.owners[group]
        if loads[owner] + costs[group] <= rooms[owner]:
            loads[owner] += costs[group]
            loads[targets[group]] -= costs[group]
            targets[group] = owner
    return _measured(task, targets)
