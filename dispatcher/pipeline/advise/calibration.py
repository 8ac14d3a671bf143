"""From a sample of a report to what is simulated: traffic, and the options that the lane ran with."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import sqrt
from random import Random
from statistics import fmean, pstdev
from typing import Any, Final

from dispatcher.group_text import parse_group
from dispatcher.pipeline.advise.lane_options import policy_name
from dispatcher.pipeline.advise.sample import Sample
from dispatcher.pipeline.advise.traffic import Arrival, Scenario, Traffic

#: A consumer's speed counts where it differs from the mean by so many standard errors.
_SURE: Final = 3
_SERVED_MIN: Final = 30
#: Where a ledger doesn't tell.
PREFETCH_UNKNOWN: Final = 10


def traffic_of(sample: Sample) -> Traffic:
    """The sample's messages, with a demand for each; what has no measured one gets that of another message of
    its queue, drawn at random from a fixed seed."""
    told = sample.options.get("inbounds") or []
    names = [each["queue"] for each in told]
    names += sorted({row["inbound"] for row in sample.messages} - set(names))
    speeds = _speeds(sample.messages)
    demands = _Demands(sample.messages, speeds)
    start_us = sample.messages[0]["at_us"]
    arrivals = [
        Arrival(
            row["at_us"] - start_us, names.index(row["inbound"]),
            parse_group(row["group"]) if row["group"] is not None else None,
            row["size"] or 0, row["cost"] or 1, demands.of(row),
        )
        for row in sample.messages
    ]  # fmt: skip
    is_whole = sample.all_messages == len(arrivals)
    end_us = sample.ended_us if is_whole else sample.messages[-1]["at_us"]
    return Traffic(
        sample.lane, tuple(names), arrivals, max(1, end_us - start_us, arrivals[-1].at_us), sample.warm_up,
        is_whole, sample.delays, _in_order(speeds, sample.messages), sample.options,
    )  # fmt: skip


def current_of(sample: Sample, traffic: Traffic) -> Scenario:
    """What the lane ran with in the window."""
    since_us = sample.messages[sample.warm_up]["at_us"]
    until_us = max(since_us + 1, max(row["at_us"] for row in sample.messages))
    present_us, prefetches = 0, Counter[int]()
    for row in sample.incarnations:
        joined_us = row["joined_us"] or since_us
        ended_us = row["ended_us"] or until_us
        there_us = min(until_us, ended_us) - max(since_us, joined_us)
        if there_us > 0:
            present_us += there_us
            prefetches[row["prefetch"] or PREFETCH_UNKNOWN] += there_us
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

    def __init__(self, rows: list[Any], speeds: dict[str, float]) -> None:
        self._speeds = speeds
        self._measured: dict[str, list[float]] = defaultdict(list)
        self._random = Random(1)
        for row in rows:
            if row["busy_us"] is not None:
                self._measured[row["inbound"]].append(self._work(row))
        self._all = [each for column in self._measured.values() for each in column]

    def of(self, row: Any) -> int:
        if row["busy_us"] is not None:
            return round(self._work(row))
        return round(self._random.choice(self._measured.get(row["inbound"]) or self._all))

    def _work(self, row: Any) -> float:
        return float(row["busy_us"]) * self._speeds.get(row["consumer"], 1.0)


def _speeds(rows: list[Any]) -> dict[str, float]:
    """By consumer: the time that its messages take on average, by that which it took; 1 where they hardly
    differ, or where there are few."""
    by_queue: dict[str, list[float]] = defaultdict(list)
    by_consumer: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        if row["busy_us"] is not None:
            by_queue[row["inbound"]].append(row["busy_us"])
            by_consumer[row["consumer"]].append(row)
    expected_us = {name: fmean(found) for name, found in by_queue.items()}
    speeds = {}
    for consumer, served in by_consumer.items():
        ratios = [row["busy_us"] / (expected_us[row["inbound"]] or 1) for row in served]
        mean = fmean(ratios)
        error = pstdev(ratios) / sqrt(len(ratios))
        is_sure = len(ratios) >= _SERVED_MIN and mean > 0 and abs(mean - 1) > _SURE * error
        speeds[consumer] = 1 / mean if is_sure else 1.0
    mean_speed = fmean(speeds.values()) if speeds else 1.0
    return {consumer: speed / mean_speed for consumer, speed in speeds.items()}


def _in_order(speeds: dict[str, float], rows: list[Any]) -> tuple[float, ...]:
    """Of who served most first, so that fewer consumers are those."""
    served = Counter(row["consumer"] for row in rows if row["consumer"] is not None)
    return tuple(speeds[consumer] for consumer, _ in served.most_common() if consumer in speeds) or (1.0,)
