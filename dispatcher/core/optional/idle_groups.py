"""Groups at rest: owned groups with no message that waits here or is unsettled. They lose their owner after a
time, or when there are too many groups, the one that rests longest first. A group with messages is never
forgotten, so that no order is lost (C18).

A group is entered when it comes to rest and not taken out when it wakes up: a look at the one that rests
longest shows whether it does. So it costs O(1) for each settled message.
"""

from __future__ import annotations

from collections import OrderedDict

from dispatcher.core.bounds import NEVER_MS, RELEASED_PER_STEP
from dispatcher.core.feature import Feature
from dispatcher.core.model import Group, GroupState
from dispatcher.core.options import LaneOptions
from dispatcher.core.ownership import release
from dispatcher.core.state import LaneState


class IdleGroups(Feature):
    """The groups that came to rest, the one that did so first in front."""

    @staticmethod
    def are_forgotten(options: LaneOptions) -> bool:
        """Whether the lane's options ask for that."""
        return options.group_idle_timeout_ms is not None or options.groups_remembered is not None

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self._idle_timeout_ms = state.options.group_idle_timeout_ms
        self._groups_max = state.options.groups_remembered
        self._since_ms: OrderedDict[Group, int] = OrderedDict()
        state.signals.group_rested.append(self.note)
        self._is_all_here = False
        self._anew_ms = 0  # idle times begin here at the earliest

    def note(self, group: Group) -> None:
        """Something of this group ended: it may be at rest from now on."""
        if _is_at_rest(group):
            self._since_ms[group] = self._state.now_ms
            self._since_ms.move_to_end(group)

    def before_pass(self) -> None:
        """Take those from their owners that rest for too long, or that are too many."""
        state = self._state
        if state.now_ms < state.lane_holds.suspended_until_ms or not self._look_whether_all_is_here():
            return
        for _ in range(RELEASED_PER_STEP):
            group = self._first()
            if group is None:
                return
            if self._are_too_many(state):
                state.counters["groups_forgotten"] += 1
            elif self._idle_until_ms(group) <= state.now_ms:
                state.counters["groups_idled"] += 1
            else:
                return
            release(state, group)

    def _look_whether_all_is_here(self) -> bool:
        """No group rests before everything has come back after a take-over: a queue may take longer for that
        than groups may be idle, and what comes back may be of any group (G-6). So may be what is parked, if
        Redis has forgotten whose it is."""
        state = self._state
        if not self._is_all_here:
            self._anew_ms = state.now_ms
            self._is_all_here = not (state.absent.some_may_come() or state.parking.default_route)
        return self._is_all_here

    def next_deadline_ms(self) -> int | None:
        """When the next one will have rested for too long; at once while there are too many."""
        state = self._state
        if state.now_ms < state.lane_holds.suspended_until_ms or not self._is_all_here:
            return None
        group = self._first()
        if group is None:
            return None
        if self._are_too_many(state):
            return state.now_ms + 1
        return None if self._idle_timeout_ms is None else self._idle_until_ms(group)

    def _are_too_many(self, state: LaneState) -> bool:
        return self._groups_max is not None and len(state.groups) > self._groups_max

    def _idle_until_ms(self, group: Group) -> int:
        return max(self._since_ms[group], self._anew_ms) + (self._idle_timeout_ms or NEVER_MS)

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
    return group.state is GroupState.OWNED and group.is_at_rest
