"""What would become of an observed flow: with consumers that compete for it, and with groups. Nobody can see
how long their work takes, so that is assumed; all else is what was observed."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from dispatcher.cli.observation import UNGROUPED

#: A hand-over, with its commit and its confirm, takes less than this; a consumer needs that much in stock.
HAND_OVER_S: Final = 0.01
#: So much more than the mean load.
HEADROOM: Final = 1.25
_SEED: Final = 1


class Competing(NamedTuple):
    """Messages that have one before them in their group, and what became of these."""

    followers: int
    at_once: int  # begun before one before it had ended
    overtaken: int  # begun before one before it had begun


class Grouped(NamedTuple):
    """The same flow in order, with as many consumers as it can use."""

    busy_mean: float  # groups in work at a time
    busy_p99: int
    wait_p99_s: float  # that a message waits for those before it in its group
    hottest_load: float  # of the busiest group: above 1 its backlog grows without end
    consumers: int  # suggested
    prefetch: int


def compete(
    at_s: Sequence[float], group_of: Sequence[int], *, consumers: int, prefetch: int, work_s: float
) -> Competing:
    """RabbitMQ deals the queue out in turn to consumers that have room; each works on one message at a time,
    for `work_s` in the mean (exponential, always the same numbers)."""
    spans = _dealt(at_s, consumers, prefetch, work_s)
    begun: dict[int, float] = {}
    ended: dict[int, float] = {}
    followers = at_once = overtaken = 0
    for group, (start, end) in zip(group_of, spans, strict=True):
        if group == UNGROUPED:
            continue
        if group in begun:
            followers += 1
            at_once += start < ended[group]
            overtaken += start < begun[group]
        begun[group] = max(start, begun.get(group, start))
        ended[group] = max(end, ended.get(group, end))
    return Competing(followers, at_once, overtaken)


def _dealt(at_s: Sequence[float], consumers: int, prefetch: int, work_s: float) -> list[tuple[float, float]]:
    """When each message is begun and ended."""
    work = random.Random(_SEED)
    spans: list[tuple[float, float]] = [(0.0, 0.0)] * len(at_s)
    waiting: deque[int] = deque()
    turn = deque(range(consumers))  # those that have room
    out, free_at = [0] * consumers, [0.0] * consumers
    ends: list[tuple[float, int]] = []

    def deal(now_s: float) -> None:
        while waiting and turn:
            message, consumer = waiting.popleft(), turn.popleft()
            start = max(now_s, free_at[consumer])
            end = start + work.expovariate(1 / work_s)
            spans[message], free_at[consumer] = (start, end), end
            heapq.heappush(ends, (end, consumer))
            out[consumer] += 1
            if out[consumer] < prefetch:
                turn.append(consumer)

    def settle_until(now_s: float) -> None:
        while ends and ends[0][0] <= now_s:
            end, consumer = heapq.heappop(ends)
            if out[consumer] == prefetch:
                turn.append(consumer)
            out[consumer] -= 1
            deal(end)

    for message, now_s in enumerate(at_s):
        settle_until(now_s)
        waiting.append(message)
        deal(now_s)
    settle_until(math.inf)
    return spans


@dataclass(slots=True)
class _Busy:
    """How many groups are in work, over time."""

    changes: list[tuple[float, int]]

    def mean_and_p99(self) -> tuple[float, int]:
        lasted: dict[int, float] = {}
        busy, before = 0, 0.0
        for at, change in sorted(self.changes):
            lasted[busy] = lasted.get(busy, 0.0) + at - before
            busy, before = busy + change, at
        lasted[0] = lasted.get(0, 0.0) - (min(self.changes)[0] if self.changes else 0.0)
        total = sum(lasted.values())
        if total <= 0:
            return 0.0, 0
        left, p99 = total * 0.01, 0
        for count in sorted(lasted, reverse=True):
            left -= lasted[count]
            p99 = count
            if left < 0:
                break
        return sum(count * seconds for count, seconds in lasted.items()) / total, p99


def group(at_s: Sequence[float], group_of: Sequence[int], *, work_s: float) -> Grouped:
    """Each group's messages one after the other, for `work_s` each; different groups don't wait."""
    free_at: dict[int, float] = {}
    counts: dict[int, int] = {}
    waits: list[float] = []
    changes: list[tuple[float, int]] = []
    for place, (now_s, its_group) in enumerate(zip(at_s, group_of, strict=True)):
        line = its_group if its_group != UNGROUPED else -2 - place  # waits for nothing
        start = max(now_s, free_at.get(line, now_s))
        free_at[line] = start + work_s
        changes += [(start, 1), (start + work_s, -1)]
        waits.append(start - now_s)
        if its_group != UNGROUPED:
            counts[its_group] = counts.get(its_group, 0) + 1
    lasted = max(at_s[-1] - at_s[0], work_s) if at_s else work_s
    mean, p99 = _Busy(changes).mean_and_p99()
    load = len(at_s) * work_s / lasted
    return Grouped(
        busy_mean=mean, busy_p99=p99, wait_p99_s=sorted(waits)[int(len(waits) * 0.99)] if waits else 0.0,
        hottest_load=max(counts.values(), default=0) * work_s / lasted,
        consumers=max(1, min(math.ceil(load * HEADROOM), p99)),
        prefetch=2 * (1 + math.ceil(HAND_OVER_S / work_s)),
    )  # fmt: skip
