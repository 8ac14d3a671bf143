"""What a simulation shows: percentiles with their spread, utilisation, and whether a lane keeps up.

The spread of a percentile is found by sectioning: of ten stretches of the arrivals, one behind the other,
each has its own, and these vary around that of all (S. Asmussen, P. Glynn: Stochastic Simulation, 2007,
section III.5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil, sqrt
from typing import Final, NamedTuple

from dispatcher.core.buckets import GroupMap
from dispatcher.pipeline.advise.lane_options import ORDERED, lane_options
from dispatcher.pipeline.advise.simulation import Course, Simulation
from dispatcher.pipeline.advise.traffic import Scenario, Traffic

_SECTIONS: Final = 10
#: Student's t with nine degrees of freedom: 95 % lie within.
_T_95: Final = 2.262
#: A section with fewer messages says nothing of percentiles.
_SECTION_MIN: Final = 10
#: A wait that grows from the middle of the window to its end, to such a part of its length, grows on.
_GROWN_PART: Final = 0.05
_GROWN_RATIO: Final = 1.5


class Measures(NamedTuple):
    """Of one scenario. A `wait` ends when the consumer begins with the message; a message is dispatched
    earlier, and waits at its consumer if that has others to do. Null where waits grow without bound."""

    utilisation: float
    throughput_per_s: float
    is_overloaded: bool
    wait_p50_us: float | None = None
    wait_p95_us: float | None = None
    wait_p99_us: float | None = None
    wait_p99_low_us: float | None = None  # with 95 % between these; null: too few messages
    wait_p99_high_us: float | None = None
    dispatch_p50_us: float | None = None  # received to dispatched
    dispatch_p99_us: float | None = None
    total_p99_us: float | None = None  # received to settled
    waiting_max: int | None = None  # not handed over, at a time
    queues_p99_us: tuple[float, ...] = ()  # of the waits of each inbound queue's messages


def simulate(traffic: Traffic, scenario: Scenario) -> Measures:
    """Simulate, unless a sum shows that it would never end."""
    load = bound(traffic, scenario)
    if load >= 1:
        return _overloaded(len(traffic.arrivals) / traffic.span_us * 1e6 / load)
    simulation = Simulation(
        traffic, lane_options(traffic, scenario), consumers=scenario.consumers, prefetch=scenario.prefetch
    )
    return measures(traffic, scenario, simulation.run())


def bound(traffic: Traffic, scenario: Scenario) -> float:
    """The part of the time that is needed at least: by all consumers together for all the work, by one for
    the hottest group. From 1 on the lane can't keep up, whatever else it does."""
    speeds = [traffic.speed(n) for n in range(scenario.consumers)]
    needed = sum(each.demand_us for each in traffic.arrivals) / (sum(speeds) * at_a_time(traffic, scenario))
    if scenario.policy in ORDERED:
        group_of, work = GroupMap(scenario.buckets), Counter[bytes]()
        for each in traffic.arrivals:
            if each.group is not None:
                work[group_of.key(each.group)] += each.demand_us
        needed = max(needed, max(work.values(), default=0) / max(speeds))
    return needed / traffic.span_us


def at_a_time(traffic: Traffic, scenario: Scenario) -> int:
    """How many messages a consumer can work on: it must have them."""
    return min(traffic.at_a_time, scenario.prefetch)


def measures(traffic: Traffic, scenario: Scenario, course: Course) -> Measures:
    """What a finished simulation shows."""
    counted = range(traffic.warm_up, len(traffic.arrivals))
    at_us = [arrival.at_us for arrival in traffic.arrivals]
    waits = [course.begun_us[n] - at_us[n] for n in counted]
    span_us = max(1, course.ended_us - at_us[0])
    throughput = len(at_us) / span_us * 1e6
    if course.is_cut or (not traffic.is_whole and _grow(waits, traffic.span_us)):
        return _overloaded(throughput)
    dispatched = sorted(course.dispatched_us[n] - at_us[n] for n in counted)
    total = sorted(course.settled_us[n] - at_us[n] for n in counted)
    queues: list[list[int]] = [[] for _ in traffic.inbounds]
    for n, wait in zip(counted, waits, strict=True):
        queues[traffic.arrivals[n].inbound].append(wait)
    ordered, (low, high) = sorted(waits), spread(waits, 99) or (None, None)
    return Measures(
        utilisation=course.busy_us / (scenario.consumers * at_a_time(traffic, scenario) * span_us),
        throughput_per_s=throughput,
        is_overloaded=False,
        wait_p50_us=percentile(ordered, 50),
        wait_p95_us=percentile(ordered, 95),
        wait_p99_us=percentile(ordered, 99),
        wait_p99_low_us=low,
        wait_p99_high_us=high,
        dispatch_p50_us=percentile(dispatched, 50),
        dispatch_p99_us=percentile(dispatched, 99),
        total_p99_us=percentile(total, 99),
        waiting_max=course.waiting_max,
        queues_p99_us=tuple(percentile(sorted(each), 99) if each else 0.0 for each in queues),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """By nearest rank."""
    return float(ordered[max(0, ceil(percent / 100 * len(ordered)) - 1)])


def spread(values: Sequence[float], percent: float) -> tuple[float, float] | None:
    """Between what the percentile lies with 95 %; None: too few values."""
    size = len(values) // _SECTIONS
    if size < _SECTION_MIN:
        return None
    of_all = percentile(sorted(values), percent)
    sections = [percentile(sorted(values[n * size : (n + 1) * size]), percent) for n in range(_SECTIONS)]
    squares = sum((each - of_all) ** 2 for each in sections)
    half = _T_95 * sqrt(squares / (_SECTIONS * (_SECTIONS - 1)))
    return max(0.0, of_all - half), of_all + half


def _grow(waits: list[int], span_us: int) -> bool:
    size = max(1, len(waits) // _SECTIONS)
    middle = len(waits) // 2
    before = sum(waits[middle : middle + size]) / size
    last = sum(waits[-size:]) / size
    return last >= _GROWN_PART * span_us and last >= _GROWN_RATIO * before


def _overloaded(throughput_per_s: float) -> Measures:
    return Measures(utilisation=1.0, throughput_per_s=throughput_per_s, is_overloaded=True)
