"""Groups at rest: owned, and nothing of them waits here or is unsettled. They lose their owner after a time.

Only where a lane asks for it. A group is entered when it comes to rest and not taken out when it wakes up:
whoever looks at the one that rests longest sees whether it does. So it costs O(1) for each settled message.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from dispatcher.core.groups import Group, GroupState

if TYPE_CHECKING:
    from dispatcher.core.state import LaneState

#: Very many groups may have come to rest at once; one commit must stay short.
RELEASED_PER_STEP: Final = 500


class Resting:
    """The groups that came to rest, the one that did so first in front."""

    def __init__(self, idle_timeout_ms: int | None) -> None:
        self._idle_timeout_ms = idle_timeout_ms
        self._is_kept = idle_timeout_ms is not None
        self._since_ms: OrderedDict[Group, int] = OrderedDict()

    def note(self, group: Group, now_ms: int) -> None:
        """Something of this group is over: it may be at rest from now on."""
        if self._is_kept and _is_at_rest(group):
            self._since_ms[group] = now_ms
            self._since_ms.move_to_end(group)

    def discard(self, group: Group) -> None:
        """It has no owner any more."""
        self._since_ms.pop(group, None)

    def release_overdue(self, state: LaneState) -> None:
        """Take those from their owners that rest for too long."""
        for _ in range(RELEASED_PER_STEP):
            group = self._first()
            if group is None or not self._is_overdue(group, state.now_ms):
                return
            state.counters["groups_idled"] += 1
            state.release(group)

    def next_deadline_ms(self) -> int | None:
        """When the next one will have rested for too long."""
        group = self._first()
        if group is None or self._idle_timeout_ms is None:
            return None
        return self._since_ms[group] + self._idle_timeout_ms

    def _is_overdue(self, group: Group, now_ms: int) -> bool:
        timeout_ms = self._idle_timeout_ms
        return timeout_ms is not None and self._since_ms[group] + timeout_ms <= now_ms

    def _first(self) -> Group | None:
        """The one that rests longest; forgets those in front of it that have woken up."""
        since_ms = self._since_ms
        while since_ms:
            group = next(iter(since_ms))
            if _is_at_rest(group):
                return group
            del since_ms[group]
        return None


def _is_at_rest(group: Group) -> bool:
    return group.state is GroupState.OWNED and not group.in_flight and group.backlogs is None
