"""Which value of an option is recommended: one rule for each. None does where nothing is gained for sure."""

from __future__ import annotations

from typing import Final

from dispatcher.pipeline.advise.lane_options import ORDERED
from dispatcher.pipeline.advise.measures import Measures
from dispatcher.pipeline.advise.sweeps import Point

#: A p99 up to this much above the best one counts as good as that.
KNEE: Final = 1.10
PREFETCH_SLACK: Final = 1.05
#: What becomes of order or of shares is changed only for a p99 that is at most such a part.
GAIN: Final = 0.90

Measured = tuple[Point, Measures]


def best_consumers(points: list[Measured], target_us: int | None) -> Point | None:
    """The smallest number whose p99 wait is within the target, also where its spread ends; without a target
    the knee: the smallest number whose p99 from received to settled is within 10 % of the best one's."""
    steady = [(point, found) for point, found in points if not found.is_overloaded]
    if target_us is not None:
        return next((point for point, found in steady if within(found, target_us)), None)
    return _least(steady, KNEE)


def within(found: Measures, target_us: int) -> bool:
    """Whether the p99 wait is within the target for sure."""
    high = found.wait_p99_high_us if found.wait_p99_high_us is not None else found.wait_p99_us
    return high is not None and high <= target_us


def best_prefetch(points: list[Measured]) -> Point | None:
    """The smallest whose p99 from received to settled is within 5 % of the best one's."""
    return _least([each for each in points if not each[1].is_overloaded], PREFETCH_SLACK)


def best_buckets(points: list[Measured], groups: int) -> Point | None:
    """The fewest, and fewer than there are groups, whose p99 is within 10 % of that without buckets; else
    none at all, which needs no more memory."""
    by_ids = next((each for each in points if each[0].number is None), None)
    if by_ids is None or by_ids[1].total_p99_us is None:
        return None
    fewer = [(point, found) for point, found in points if (point.number or groups) < groups]
    limit = KNEE * by_ids[1].total_p99_us
    fitting = (p for p, found in fewer if found.total_p99_us is not None and found.total_p99_us <= limit)
    return next(fitting, by_ids[0])


def best_policy(points: list[Measured], current: str) -> Point | None:
    """The present one, unless another one that keeps as much order takes a tenth off the p99."""
    now = next((each for each in points if each[0].value == current), None)
    if now is None or current not in ORDERED:
        return now[0] if now else None
    others = [each for each in points if each[0].value in ORDERED and each[1].total_p99_us is not None]
    best = min(others, key=lambda each: each[1].total_p99_us or 0.0, default=now)
    return best[0] if is_gain(now[1].total_p99_us, best[1].total_p99_us) else now[0]


def best_weights(points: list[Measured], current: tuple[int, ...]) -> Point | None:
    """The present ones, unless with others the queue that waits longest waits a tenth less."""
    now = next((each for each in points if each[0].scenario.weights == current), None)
    steady = [each for each in points if each[1].queues_p99_us]
    if now is None or not steady:
        return now[0] if now else None
    best = min(steady, key=lambda each: max(each[1].queues_p99_us))
    before = max(now[1].queues_p99_us, default=None)
    return best[0] if is_gain(before, max(best[1].queues_p99_us)) else now[0]


def is_better(now: Measures, other: Measures) -> bool:
    """Whether the p99 wait is shorter for sure: its interval ends below that of now; or now grows on."""
    if now.is_overloaded or other.is_overloaded:
        return now.is_overloaded and not other.is_overloaded
    if now.wait_p99_low_us is None or other.wait_p99_high_us is None:
        return False
    return other.wait_p99_high_us < now.wait_p99_low_us


def is_gain(before_us: float | None, after_us: float | None) -> bool:
    """Whether the second is enough below the first to be worth a change. None: without bound."""
    if after_us is None:
        return False
    return before_us is None or after_us < GAIN * before_us


def _least(steady: list[Measured], slack: float) -> Point | None:
    if not steady:
        return None
    best = min(found.total_p99_us or 0.0 for _, found in steady)
    return next(point for point, found in steady if (found.total_p99_us or 0.0) <= slack * best)
