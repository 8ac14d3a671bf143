"""How long something took that happens again and again: since the last look, and in all."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from dispatcher.core.effects import Effects
from dispatcher.core.orders import AckInbound
from dispatcher.core.records import Dispatched
from dispatcher.http.views import Buckets, Spread

#: Upper bounds of a histogram's buckets, in seconds. Compiled, a tuple whose type has its length could not be
#: read as a whole ("value for final name was not set").
BOUNDS_S: Final[tuple[float, ...]] = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
    1800.0,
)  # fmt: skip


class Histogram:
    """Counts durations by `BOUNDS_S`, and adds them up."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)  # of each bucket alone; the last one has no bound
        self._sum_s = 0.0

    def add(self, duration_s: float, times: int = 1) -> None:
        self._counts[bisect_left(BOUNDS_S, duration_s)] += times
        self._sum_s += duration_s * times

    def add_all_ms(self, durations_ms: Sequence[int]) -> None:
        """Add whole milliseconds, most of which are equal."""
        for duration_ms, times in Counter(durations_ms).items():
            self.add(max(duration_ms, 0) / 1_000, times)  # the clock may have been set back

    def buckets(self) -> Buckets:
        return Buckets(
            tuple(zip(BOUNDS_S, accumulate(self._counts), strict=False)), sum(self._counts), self._sum_s
        )


class Durations:
    """Takes durations; keeps a histogram, and the mean and the longest since the last look."""

    def __init__(self) -> None:
        self.all = Histogram()
        self._sum_s = self._longest_s = 0.0
        self._count = 0

    def add(self, duration_s: float) -> None:
        self.all.add(duration_s)
        self._sum_s += duration_s
        self._count += 1
        if duration_s > self._longest_s:
            self._longest_s = duration_s

    def take(self) -> Spread | None:
        """What was added since the last call; None: nothing. The next call begins anew."""
        if not self._count:
            return None
        spread = Spread(self._sum_s / self._count * 1_000, self._longest_s * 1_000)
        self._sum_s = self._longest_s = 0.0
        self._count = 0
        return spread


class MessageDurations:
    """How long messages waited and were worked on, counted when the core decides that this has ended."""

    def __init__(self) -> None:
        self.wait = Histogram()  # from the arrival (before it was parked) to the first hand-over
        self.process = Histogram()  # from the last hand-over, if this leader decided that, to the end

    def decided(self, effects: Effects, now_ms: int) -> None:
        """Count the messages that this step handed over for the first time, and those that ended in it."""
        actions = effects.actions
        if not actions:
            return
        waited_ms = [
            now_ms - action.message.waits_since_ms
            for action in actions
            if type(action) is Dispatched and action.message.attempt == 1
        ]
        if waited_ms:
            self.wait.add_all_ms(waited_ms)
        acks = actions[-1]  # they are behind all else
        if type(acks) is AckInbound:
            out_ms = [now_ms - each.dispatched_at_ms for each in acks.messages if each.dispatched_at_ms]
            self.process.add_all_ms(out_ms)
