"""Hand-overs of one leadership as numpy columns: in order, but for what is planted.

A leadership has stints of traffic, each of two phases. In a phase every group is one consumer's; at its end
its last hand-overs are taken back, and the next phase begins with them, at other consumers.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

#: Columns by name, of the same length.
Columns = dict[str, np.ndarray]

CONSUMERS: Final = 16
INBOUNDS: Final = ("high", "low")
OUTCOMES: Final = ("settled", "failed", "taken_back")
SETTLED, FAILED, TAKEN_BACK = range(3)
TAKEN_BACK_MAX: Final = 100  # of a phase
FAILED_SHARE: Final = 0.001
PARKED_SHARE: Final = 0.002
SPACING_US: Final = 500
SECOND: Final = 1_000_000
#: The group that may have a share of its own.
HOT: Final = 0


class Planted(NamedTuple):
    """Hand-overs that break a rule: rule, group, and the arrival of the one that breaks it."""

    rule: str
    group: int
    arrival: int


class Numbers:
    """What goes on over the leaderships of a lane."""

    def __init__(self, groups: int, seed: int, hot_share: float = 0.0) -> None:
        self.hot_share = hot_share
        self.random = np.random.default_rng(seed)
        self.arrivals = np.zeros(len(INBOUNDS), np.int64)
        weights = 1 / np.arange(1, groups + 1)
        self._reached = np.cumsum(weights / weights.sum())
        self.planted: list[Planted] = []
        self.spoiled: set[int] = set()  # groups in which something is planted
        self.due: Counter[str] = Counter()  # violations that are to be planted, by rule

    def groups(self, count: int) -> np.ndarray:
        """Drawn by Zipf: the n-th gets 1/n of what the first gets. HOT has its share of all besides."""
        drawn = np.searchsorted(self._reached, self.random.random(count))
        drawn = np.minimum(drawn, len(self._reached) - 1)
        if self.hot_share:
            drawn[self.random.random(count) < self.hot_share] = HOT
        return drawn.astype(np.int32)


def counted(keys: np.ndarray) -> np.ndarray:
    """Of each element how many equal ones come before it, from 0 on."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(ordered)])
    found = np.empty(len(keys), np.int64)
    found[order] = np.arange(len(keys)) - np.repeat(starts, lengths)
    return found


def phase(
    numbers: Numbers, place: int, count: int, start_us: int, former: Columns | None
) -> tuple[Columns, int]:
    """`count` messages from `start_us` on, after what was taken back of the former phase; and its end.

    The columns `seq` and `epoch` are the leadership's to fill in.
    """
    found = _received(numbers, count, start_us, former)
    random, size = numbers.random, len(found["group"])
    found["consumer"] = ((found["group"] * 7 + place) % CONSUMERS).astype(np.int32)
    found["dispatched_at"] = start_us + np.arange(size, dtype=np.int64) * SPACING_US
    found["committed_at"] = found["dispatched_at"] + random.integers(200, 900, size)
    found["confirmed_at"] = found["committed_at"] + random.integers(200, 900, size)
    busy = np.minimum(random.exponential(4_000, size), 200_000).astype(np.int64) + 1_000
    found["ended_at"] = found["confirmed_at"] + busy
    found["outcome"] = np.where(random.random(size) < FAILED_SHARE, FAILED, SETTLED).astype(np.int8)
    found["phase"] = np.full(size, place, np.int32)
    kept = size - _tail(count)
    _plant(numbers, found, kept)
    end_us = int(found["ended_at"].max()) + 1_000
    found["outcome"][kept:], found["ended_at"][kept:] = TAKEN_BACK, end_us
    found["group_seq"] = counted(found["group"]) + 1
    return found, end_us + 1_000


def _tail(count: int) -> int:
    return min(TAKEN_BACK_MAX, count // 10)


def _received(numbers: Numbers, count: int, start_us: int, former: Columns | None) -> Columns:
    random = numbers.random
    inbound = (random.random(count) < 0.25).astype(np.int8)
    arrival = counted(inbound) + numbers.arrivals[inbound] + 1
    numbers.arrivals += np.bincount(inbound, minlength=len(INBOUNDS))
    again = 0 if former is None else _tail(count)
    due = start_us + (again + np.arange(count, dtype=np.int64)) * SPACING_US
    waited = np.minimum(random.exponential(20_000, count), SECOND).astype(np.int64) + 100
    size = random.integers(64, 4_096, count)
    new: Columns = {
        "group": numbers.groups(count), "inbound": inbound, "arrival": arrival, "received_at": due - waited,
        "size": size, "cost": 1 + size // 256, "attempt": np.ones(count, np.int32),
        "was_parked": random.random(count) < PARKED_SHARE,
    }  # fmt: skip
    if former is None:
        return new
    taken = {name: former[name][-again:] for name in new}
    taken["attempt"] = taken["attempt"] + 1
    return {name: np.concatenate([taken[name], new[name]]) for name in new}


def _plant(numbers: Numbers, found: Columns, kept: int) -> None:
    """As many of the violations that are due as fit, each in a group of its own."""
    due, groups = numbers.due, found["group"]
    if not due.total():
        return
    by_group: dict[int, list[int]] = {}
    for row in np.argsort(groups[:kept], kind="stable"):
        by_group.setdefault(int(groups[row]), []).append(int(row))
    if numbers.hot_share:
        _plant_in_hot(numbers, found, by_group.pop(HOT, []))
    tail = set(groups[kept:].tolist())
    strange = set(groups[(found["attempt"] > 1) | (found["outcome"] == FAILED)].tolist()) | numbers.spoiled
    clean = [group for group, rows in by_group.items() if len(rows) > 3 and group not in strange]
    numbers.random.shuffle(clean)
    for group in clean:
        rule, late = "order", None
        if due["order"]:
            late = _swap(found, by_group[group])
        elif due["overlap"] and group not in tail:
            rule, late = "overlap", _overlap(found, by_group[group])
        if late is not None:
            numbers.planted.append(Planted(rule, group, late))
            numbers.spoiled.add(group)
            due[rule] -= 1


def _plant_in_hot(numbers: Numbers, found: Columns, rows: list[int]) -> None:
    """One violation of each rule that is due, if the group has enough messages, in the middle of them."""
    third = len(rows) // 3
    if third < 30:
        return
    if numbers.due["order"] and (late := _swap(found, rows[third : 2 * third])) is not None:
        numbers.planted.append(Planted("order", HOT, late))
        numbers.due["order"] -= 1
    if numbers.due["overlap"]:
        numbers.planted += [Planted("overlap", HOT, late) for late in _overlap_in_hot(found, rows, 2 * third)]
        numbers.due["overlap"] -= 1


def _overlap_in_hot(found: Columns, rows: list[int], place: int) -> list[int]:
    """One goes to another consumer while others are in hand; returns the arrivals of those that begin while
    the other one has any."""
    began, ended, strange = found["dispatched_at"], found["ended_at"], rows[place]
    ended[rows[place - 1]] = began[strange] + 5_000
    found["consumer"][strange] = (found["consumer"][strange] + 1) % CONSUMERS
    late = [row for row in rows[place + 1 :] if began[row] < ended[strange]]
    return [int(found["arrival"][row]) for row in [strange, *late]]


def _swap(found: Columns, rows: list[int]) -> int | None:
    """Two messages of one queue with none of it between them, that go once and are settled; returns the
    arrival of the second one."""
    plain = (found["attempt"] == 1) & (found["outcome"] != FAILED)
    for first, second in pairwise(rows):
        if plain[first] and plain[second] and found["inbound"][first] == found["inbound"][second]:
            arrivals = found["arrival"]
            arrivals[first], arrivals[second] = int(arrivals[second]), int(arrivals[first])
            return int(arrivals[second])
    return None


def _overlap(found: Columns, rows: list[int]) -> int:
    """The last one of the phase goes to another consumer before the one before it has ended: the last one, so
    that nothing comes after it that overlaps as well."""
    *_, first, second = rows
    found["consumer"][second] = (found["consumer"][second] + 1) % CONSUMERS
    found["ended_at"][first] = found["dispatched_at"][second] + 5_000
    return int(found["arrival"][second])
