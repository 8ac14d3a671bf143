"""How long consumers worked on messages, and on how many at a time: neither is in a ledger.

A ledger has the time when a consumer can have got a message, and the time when its settle was read. A
consumer that works on N at a time begins with the message that is ready longest as soon as one is done; a
message is ready when it is there, and the one before it of its group is done. That gives the beginnings, and
so the work. This can be computed for several N. The right one is that for which the work does not depend on
how much the consumer had in hand when the message came: if N is too small, messages that came to a busy
consumer seem to be less work, and if it is too large, more.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from math import sqrt
from statistics import StatisticsError, correlation
from typing import Final, NamedTuple

#: Numbers of messages at a time that are considered, up to the prefetch.
_CANDIDATES: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 100, 128, 200, 256, 500, 1_000)
#: Clocks and medians are not exact: this part of the messages may be done before they can have been begun.
_IMPOSSIBLE_PART: Final = 0.02
#: A rank correlation this weak, or within two standard errors of none, is none.
_WEAK: Final = 0.05


class Handled(NamedTuple):
    """A message at its consumer. Instants in µs."""

    place: int  # in the sample
    incarnation: str
    group: str | None  # of which the consumer has one in work at a time
    there_us: int
    done_us: int
    settled_us: int  # the settle was read: together with others, if that is the same


class ServiceTimes(NamedTuple):
    """What each message took, by its place, in µs; and how many a consumer works on at a time."""

    work_us: dict[int, float]
    at_a_time: int


def service_times(handled: Iterable[Handled], prefetch: int) -> ServiceTimes:
    """The smallest number at a time with which what messages take does not seem to fall with what their
    consumer had in hand."""
    consumers: dict[str, list[Handled]] = defaultdict(list)
    for each in handled:
        consumers[each.incarnation].append(each)
    for hands in consumers.values():
        hands.sort(key=lambda each: (each.there_us, each.place))
    in_hand = {place: count for hands in consumers.values() for place, count in _in_hand(hands)}
    work_us, at_a_time = _work(consumers.values(), 1)[0], 1
    for number in _CANDIDATES:
        if number > max(1, prefetch):
            break
        found, impossible = _work(consumers.values(), number)
        work_us, at_a_time = found, number
        if impossible <= _IMPOSSIBLE_PART * len(found) and not _falls(found, in_hand):
            break
    return ServiceTimes(work_us, at_a_time)


def _work(consumers: Iterable[list[Handled]], at_a_time: int) -> tuple[dict[int, float], int]:
    """The time that each message took if `at_a_time` are in work together; and for how many that is
    impossible."""
    work_us: dict[int, float] = {}
    impossible = 0
    for hands in consumers:
        free_us = [0] * at_a_time
        for ready_us, each in sorted(_ready(hands), key=lambda pair: (pair[0], pair[1].place)):
            begun_us = max(ready_us, heapq.heappop(free_us))
            impossible += each.done_us < begun_us
            heapq.heappush(free_us, max(begun_us, each.done_us))
            work_us[each.place] = max(0, each.done_us - begun_us)
        _share_evenly(hands, work_us)
    return work_us, impossible


def _ready(hands: list[Handled]) -> Iterable[tuple[int, Handled]]:
    done_us: dict[str, int] = {}
    for each in hands:
        if each.group is None:
            yield each.there_us, each
        else:
            yield max(each.there_us, done_us.get(each.group, 0)), each
            done_us[each.group] = each.done_us


def _share_evenly(hands: list[Handled], work_us: dict[int, float]) -> None:
    """Messages that are settled together get equal parts of the time: their own parts are not known."""
    counts = Counter(each.settled_us for each in hands)
    if len(counts) == len(hands):
        return
    sums: dict[int, float] = defaultdict(float)
    for each in hands:
        sums[each.settled_us] += work_us[each.place]
    for each in hands:
        work_us[each.place] = sums[each.settled_us] / counts[each.settled_us]


def _in_hand(hands: list[Handled]) -> Iterable[tuple[int, int]]:
    """How many others a consumer had when each message came."""
    done_us: list[int] = []
    for each in hands:
        while done_us and done_us[0] <= each.there_us:
            heapq.heappop(done_us)
        yield each.place, len(done_us)
        heapq.heappush(done_us, each.done_us)


def _falls(work_us: dict[int, float], in_hand: dict[int, int]) -> bool:
    places = list(work_us)
    try:
        found = correlation(
            _ranks([work_us[place] for place in places]), _ranks([in_hand[place] for place in places])
        )
    except StatisticsError:  # all alike, or too few
        return False
    return found < -max(_WEAK, 2 / sqrt(len(places)))


def _ranks(values: list[float] | list[int]) -> list[float]:
    """Equal ones share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    edges = [0, *(n for n in range(1, len(order)) if values[order[n]] != values[order[n - 1]]), len(order)]
    ranks = [0.0] * len(values)
    for first, end in pairwise(edges):
        for place in order[first:end]:
            ranks[place] = (first + end - 1) / 2
    return ranks
