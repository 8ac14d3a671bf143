"""`pause: lane`: a rebalance holds the whole lane until everything in flight is settled (A16)."""

from __future__ import annotations

from dispatcher.core.feature import Feature
from dispatcher.core.state import LaneState


class Quiescing(Feature):
    """Holds the lane, and lets it go on."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self.pending = False

    def begin_waiting(self) -> None:
        """Nothing is handed out until everything is settled."""
        self.pending = self._state.is_quiescing = True

    def before_pass(self) -> None:
        """See whether everything is settled. O(consumers), while the lane waits for that."""
        state = self._state
        if state.reset_until is not None or any(c.in_flight for c in state.by_uuid.values()):
            return
        self.pending = state.is_quiescing = False
        state.log_event("lane_goes_on")
