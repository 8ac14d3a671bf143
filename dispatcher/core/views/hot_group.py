"""The group with most of the incoming messages: its consumer alone gets them, so no other one helps there.

Counted in a table of bounded size, whatever the number of groups (the frequent items of Misra and Gries, with
many decrements at a time, after each batch): of a share at most 1/128 is overlooked.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dispatcher.core.events import MessagesArrived
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.model import SETTLED
from dispatcher.core.state import LaneState

#: Counts are of this much time at most, and of half of it at least.
WINDOW_MS: Final = 60_000
#: A group that has more than this part of all is never forgotten.
_KEPT: Final = 128
_KNOWN_MAX: Final = 4 * _KEPT


class GroupShare(NamedTuple):
    """A group by its key, and its part of the incoming messages, 0 to 1."""

    key: bytes
    share: float


class HotGroup:
    """Counts arrivals by group over the last minute."""

    def __init__(self, now_ms: int) -> None:
        self._begun_ms = now_ms
        self._counts: Counter[bytes] = Counter()
        self._sum = 0
        self._before: Counter[bytes] = Counter()  # of the half minute before
        self._before_sum = 0

    def count(self, keys: Sequence[bytes | None]) -> None:
        """Messages of these groups, or of none, came in."""
        counts = self._counts
        self._sum += len(keys)
        counts.update([key for key in keys if key is not None])
        if len(counts) > _KNOWN_MAX:
            less = sorted(counts.values(), reverse=True)[_KEPT]
            self._counts = Counter({key: count - less for key, count in counts.items() if count > less})

    def pass_time(self, now_ms: int) -> None:
        """Forget arrivals that are too long ago."""
        passed_ms = now_ms - self._begun_ms
        if passed_ms < WINDOW_MS // 2:
            return
        recent = passed_ms < WINDOW_MS
        self._before, self._before_sum = (self._counts, self._sum) if recent else (Counter(), 0)
        self._counts, self._sum = Counter(), 0
        self._begun_ms = now_ms

    def first(self, now_ms: int) -> GroupShare | None:
        """The busiest group as of now; None: nothing with a group came in. Changes nothing."""
        return next(iter(self.top(now_ms, 1)), None)

    def top(self, now_ms: int, count: int) -> list[GroupShare]:
        """So many of the busiest groups as of now, the busiest first. Changes nothing."""
        passed_ms = now_ms - self._begun_ms
        if passed_ms >= WINDOW_MS:
            return []
        before, before_sum = (
            (self._before, self._before_sum) if passed_ms < WINDOW_MS // 2 else (Counter(), 0)
        )
        known = self._counts.keys() | before.keys()
        of_key = {key: self._counts.get(key, 0) + before.get(key, 0) for key in known}
        first = heapq.nlargest(count, of_key, key=lambda key: (of_key[key], key))
        return [GroupShare(key, of_key[key] / (self._sum + before_sum)) for key in first]


class HotGroupWatch(Feature):
    """Counts what arrives at a lane."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self._counted = HotGroup(state.now_ms)

    def events(self) -> Mapping[type, Handler]:
        return {MessagesArrived: self._arrived}

    def _arrived(self, event: MessagesArrived) -> None:
        """Messages that recovery knew came in before. They are settled by now: an entry stands for each."""
        self._counted.pass_time(self._state.now_ms)
        key_of = self._state.group_map.order_key
        if self._state.policy.grouped and self._state.keys_are_ids:  # no call for each message
            new = [m.group_id for m in event.messages if m.state is not SETTLED]
        else:
            new = [key_of(m) for m in event.messages if m.state is not SETTLED]
        self._counted.count(new)

    def first(self) -> GroupShare | None:
        """The busiest group of the last minute."""
        return self._counted.first(self._state.now_ms)

    def top(self, count: int) -> list[GroupShare]:
        """So many of the busiest groups of the last minute, the busiest first."""
        return self._counted.top(self._state.now_ms, count)
