"""From a sample of a report to the input of simulations: traffic, and the options that the lane ran with."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import sqrt
from random import Random
from statistics import fmean, pstdev
from typing import Any, Final

from dispatcher.core.queue_ids import inbound_id
from dispatcher.pipeline.advise.lane_options import ORDERED, policy_name
from dispatcher.pipeline.advise.sample import Sample
from dispatcher.pipeline.advise.service_times import Handled, service_times
from dispatcher.pipeline.advise.traffic import SampledArrival, Scenario, Traffic
from dispatcher.wire.group_text import parse_group

#: A consumer's speed counts where it differs from the mean by this many standard errors.
_SURE: Final = 3
_SERVED_MIN: Final = 30
#: Where a ledger doesn't tell.
PREFETCH_UNKNOWN: Final = 10


def traffic_of(sample: Sample) -> Traffic:
    """The sample's messages, with a demand for each. A message without a measured demand gets that of another
    message of its queue, drawn at random from a fixed seed."""
    told = sample.options.get("inbounds") or []
    names = [each["queue"] for each in told]
    names += sorted({row["inbound"] for row in sample.messages} - set(names))
    found = service_times(_handled(sample), max(prefetches_of(sample), default=PREFETCH_UNKNOWN))
    speeds = _speeds(sample.messages, found.work_us)
    demands = _Demands(sample.messages, found.work_us, speeds)
    start_us = sample.messages[0]["at_us"]
    arrivals = [
        SampledArrival(
            row["at_us"] - start_us, inbound_id(names.index(row["inbound"])),
            parse_group(row["group"]) if row["group"] is not None else None,
            row["size"] or 0, row["cost"] or 1, demands.of(place, row),
            row["type"].encode() if row["type"] is not None else None,
        )
        for place, row in enumerate(sample.messages)
    ]  # fmt: skip
    is_whole = sample.all_messages == len(arrivals)
    end_us = sample.ended_us if is_whole else sample.messages[-1]["at_us"]
    return Traffic(
        sample.lane, tuple(names), arrivals, max(1, end_us - start_us, arrivals[-1].at_us), sample.warm_up,
        is_whole, sample.delays, _in_order(speeds, sample.messages), found.at_a_time,
        sample.options,
    )  # fmt: skip


def _handled(sample: Sample) -> list[Handled]:
    """The messages at their consumers, as far as that is known."""
    way_us, is_ordered = sample.delays.way_us, policy_name(sample.options) in ORDERED
    return [
        Handled(
            place, row["incarnation"], row["group"] if is_ordered else None, row["committed_us"] + way_us,
            row["settled_us"] - way_us, row["settled_us"],
        )
        for place, row in enumerate(sample.messages)
        if row["settled_us"] is not None
    ]  # fmt: skip


def prefetches_of(sample: Sample) -> Counter[int]:
    """For how many µs of the window consumers with each prefetch were there, together."""
    since_us, until_us = _window(sample)
    found = Counter[int]()
    for row in sample.incarnations:
        joined_us = row["joined_us"] or since_us
        ended_us = row["ended_us"] or until_us
        there_us = min(until_us, ended_us) - max(since_us, joined_us)
        if there_us > 0:
            found[row["prefetch"] or PREFETCH_UNKNOWN] += there_us
    return found


def _window(sample: Sample) -> tuple[int, int]:
    since_us = sample.messages[sample.warm_up]["at_us"]
    return since_us, max(since_us + 1, max(row["at_us"] for row in sample.messages))


def current_of(sample: Sample, traffic: Traffic) -> Scenario:
    """What the lane ran with in the window."""
    since_us, until_us = _window(sample)
    prefetches = prefetches_of(sample)
    present_us = prefetches.total()
    served = len({row["consumer"] for row in sample.messages if row["consumer"] is not None})
    weights = {each["queue"]: each["weight"] for each in sample.options.get("inbounds") or []}
    return Scenario(
        consumers=max(1, round(present_us / (until_us - since_us)), 0 if present_us else served),
        prefetch=prefetches.most_common(1)[0][0] if prefetches else PREFETCH_UNKNOWN,
        policy=policy_name(sample.options),
        weights=tuple(weights.get(name, 1) for name in traffic.inbounds),
        buckets=sample.options.get("buckets"),
    )


class _Demands:
    """How long a consumer of speed 1 works on a message, in µs."""

    def __init__(self, rows: list[Any], work_us: dict[int, float], speeds: dict[str, float]) -> None:
        self._demand_us = {place: work * speeds[rows[place]["consumer"]] for place, work in work_us.items()}
        self._by_queue: dict[str, list[float]] = defaultdict(list)
        self._random = Random(1)
        for place, demand_us in self._demand_us.items():
            self._by_queue[rows[place]["inbound"]].append(demand_us)

    def of(self, place: int, row: Any) -> int:
        known = self._demand_us.get(place)
        if known is None:
            known = self._random.choice(self._by_queue.get(row["inbound"]) or list(self._demand_us.values()))
        return round(known)


def _speeds(rows: list[Any], work_us: dict[int, float]) -> dict[str, float]:
    """By consumer: the time that its messages take on average, by that which it took; 1 where they hardly
    differ, or where there are few."""
    by_queue: dict[str, list[float]] = defaultdict(list)
    for place, work in work_us.items():
        by_queue[rows[place]["inbound"]].append(work)
    expected_us = {name: fmean(found) or 1.0 for name, found in by_queue.items()}
    ratios: dict[str, list[float]] = defaultdict(list)
    for place, work in work_us.items():
        ratios[rows[place]["consumer"]].append(work / expected_us[rows[place]["inbound"]])
    speeds = {}
    for consumer, found in ratios.items():
        mean, error = fmean(found), pstdev(found) / sqrt(len(found))
        is_sure = len(found) >= _SERVED_MIN and mean > 0 and abs(mean - 1) > _SURE * error
        speeds[consumer] = 1 / mean if is_sure else 1.0
    mean_speed = fmean(speeds.values()) if speeds else 1.0
    return {consumer: speed / mean_speed for consumer, speed in speeds.items()}


def _in_order(speeds: dict[str, float], rows: list[Any]) -> tuple[float, ...]:
    """The speeds of the consumers that served most come first: a run with fewer consumers has those."""
    served = Counter(row["consumer"] for row in rows if row["consumer"] is not None)
    return tuple(speeds[consumer] for consumer, _ in served.most_common() if consumer in speeds) or (1.0,)
