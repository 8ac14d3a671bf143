"""Rows in Redis that name ended incarnations as owners go, some in each step: one may own many groups."""

from __future__ import annotations

from dispatcher.core.bounds import STALE_OWNERS_PER_STEP
from dispatcher.core.feature import Feature
from dispatcher.core.state import LaneState


class StaleOwners(Feature):
    """Ends the rows of `LaneState.stale_owners`. The last feature of a step: the owners that this step gives
    stand."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self.pending = (state.stale_owners,)

    def begin(self) -> None:
        self._end_some()

    def after_pass(self, *, idle: bool) -> bool:
        self._end_some()
        return False

    def _end_some(self) -> None:
        state = self._state
        for _ in range(min(len(state.stale_owners), STALE_OWNERS_PER_STEP)):
            group_id = state.stale_owners.popleft()
            group = state.groups.get(group_id)
            if group is None or group.owner is None:
                state.effects.owners.setdefault(group_id, None)

    def next_deadline_ms(self) -> int | None:
        return self._state.now_ms + 1
