"""Which options are tried: one at a time around what the lane runs with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from dispatcher.pipeline.advise.lane_options import ORDERED, POLICIES
from dispatcher.pipeline.advise.traffic import Scenario, Traffic

#: The least and the most that can be tried.
CONSUMERS: Final = (1, 64)
PREFETCH: Final = (1, 1_000)
BUCKETS: Final = (64, 65_536)
EXACT: Final = "exact"
#: Of a weight that is proposed.
_WEIGHT_MAX: Final = 100
#: Closer is not worth larger numbers.
_WEIGHT_ERROR: Final = 0.05


class Option(StrEnum):
    """All but the last are called as the scenario's fields."""

    CONSUMERS = "consumers"
    PREFETCH = "prefetch"
    BUCKETS = "buckets"
    POLICY = "policy"
    WEIGHTS = "weights"
    RECOMMENDED = "recommended"  # all of them together


@dataclass(frozen=True)
class Wanted:
    """The values to try."""

    consumers: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    prefetch: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000)
    buckets: tuple[int | None, ...] = (64, 256, 1_024, 4_096, 16_384, 65_536, None)  # None: by the ids
    policies: tuple[str, ...] = POLICIES
    weights: bool = False  # they say what the user wants of the queues: others are tried only if asked for


def numbers(text: str, least: int, most: int) -> tuple[int, ...]:
    """`3,4,5`, or `1..64`: both ends, and what doubling makes between. Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, is_range, last = part.strip().partition("..")
        low = _number(first, least, most)
        high = _number(last, least, most) if is_range else low
        if low > high:
            raise ValueError(f"{part.strip()!r}: begins above its end")
        while low < high:
            found.add(low)
            low *= 2
        found.add(high)
    return tuple(sorted(found))


def bucket_numbers(text: str) -> tuple[int | None, ...]:
    """Numbers, and `exact`: groups by their ids. Raises ValueError."""
    parts = [part.strip() for part in text.split(",")]
    sizes = [part for part in parts if part != EXACT]
    found: tuple[int | None, ...] = numbers(",".join(sizes), *BUCKETS) if sizes else ()
    return (*found, None) if EXACT in parts else found


def policies(text: str) -> tuple[str, ...]:
    """Raises ValueError."""
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in POLICIES:
            raise ValueError(f"{name!r} is none of {', '.join(POLICIES)}")
    return names


def _number(text: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise ValueError(f"{text!r} is not a whole number from {least} to {most:,}")
    return int(text)


class Point(NamedTuple):
    """One value of an option."""

    option: Option
    value: str
    number: float | None
    scenario: Scenario


def consumers_points(wanted: Wanted, base: Scenario) -> list[Point]:
    numbers = sorted({*wanted.consumers, base.consumers})
    return [Point(Option.CONSUMERS, str(n), n, replace(base, consumers=n)) for n in numbers]


def other_points(wanted: Wanted, base: Scenario, traffic: Traffic) -> list[Point]:
    """All but the number of consumers. Buckets only where groups are kept in order, weights only of several
    queues, and if they are wanted."""
    numbers = sorted({*wanted.prefetch, base.prefetch})
    points = [Point(Option.PREFETCH, str(n), n, replace(base, prefetch=n)) for n in numbers]
    if base.policy in ORDERED:
        sizes = sorted({*wanted.buckets, base.buckets}, key=lambda size: size or 1 << 62)
        points += [
            Point(Option.BUCKETS, EXACT if size is None else str(size), size, replace(base, buckets=size))
            for size in sizes
        ]
    names = [name for name in POLICIES if name in {*wanted.policies, base.policy}]
    points += [Point(Option.POLICY, name, None, replace(base, policy=name)) for name in names]
    if wanted.weights and len(traffic.inbounds) > 1:
        proposals = dict.fromkeys([base.weights, (1,) * len(traffic.inbounds), weights_by_work(traffic)])
        points += [weights_point(traffic, base, weights) for weights in proposals]
    return points


def weights_point(traffic: Traffic, base: Scenario, weights: tuple[int, ...]) -> Point:
    text = " ".join(f"{queue}:{weight}" for queue, weight in zip(traffic.inbounds, weights, strict=True))
    return Point(Option.WEIGHTS, text, None, replace(base, weights=weights))


def weights_by_work(traffic: Traffic) -> tuple[int, ...]:
    """In proportion to what each queue's messages cost of its share."""
    costs = [0] * len(traffic.inbounds)
    for arrival in traffic.arrivals:
        costs[arrival.inbound] += arrival.cost
    return _whole([float(cost) for cost in costs])


def evened(weights: tuple[int, ...], waits_us: tuple[float, ...]) -> tuple[int, ...]:
    """More for whom one waits longer: towards waits that are alike."""
    mean = sum(waits_us) / len(waits_us) or 1.0
    return _whole([weight * (0.1 + wait / mean) for weight, wait in zip(weights, waits_us, strict=True)])


def _whole(parts: list[float]) -> tuple[int, ...]:
    """As whole numbers in about this proportion, the largest at most _WEIGHT_MAX and as small as can be."""
    largest = max(parts) or 1.0
    shares = [max(part / largest, 1 / _WEIGHT_MAX) for part in parts]
    for top in range(1, _WEIGHT_MAX):
        found = tuple(max(1, round(share * top)) for share in shares)
        if all(abs(n / top - share) <= _WEIGHT_ERROR * share for n, share in zip(found, shares, strict=True)):
            return found
    return tuple(round(share * _WEIGHT_MAX) for share in shares)
