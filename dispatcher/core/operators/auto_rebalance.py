"""Consumers come and go: when a lane shall be rebalanced by itself, and whether one holds all of it now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dispatcher.core.state import LaneState

#: Who starts ten consumers, or replaces them one by one, wants one rebalance: it comes when nobody has come
#: or gone for so long …
QUIET_MS: Final = 1_000
#: … or when somebody has come so long ago, however many still do.
DELAY_MS_MAX: Final = 10_000


class AutoRebalance:
    """`is_settling`: nothing is handed out until everything in flight is settled (`pause: lane`, A16)."""

    def __init__(self, *, rebalances: bool) -> None:
        self._rebalances = rebalances
        self._since_ms: int | None = None  # a consumer came, and the lane has not been rebalanced since
        self._due_at_ms = 0
        self.is_quiescing = False

    def joined(self, now_ms: int) -> None:
        """A new incarnation has come."""
        if self._rebalances:
            if self._since_ms is None:
                self._since_ms = now_ms
            self.left(now_ms)

    def left(self, now_ms: int) -> None:
        """One is over, or will be: its groups find new owners by themselves, a rebalance waits for that."""
        if self._since_ms is not None:
            self._due_at_ms = min(now_ms + QUIET_MS, self._since_ms + DELAY_MS_MAX)

    def is_due(self, now_ms: int) -> bool:
        """True once for each time that a rebalance is due."""
        if self._since_ms is None or now_ms < self._due_at_ms:
            return False
        self._since_ms = None
        return True

    def look(self, state: LaneState) -> None:
        """See whether everything is settled. O(consumers), while the lane waits for that."""
        if not self.is_quiescing or state.reset_until is not None:
            return
        if not any(consumer.in_flight for consumer in state.by_uuid.values()):
            self.is_quiescing = False
            state.log_event("lane_goes_on")

    def next_deadline_ms(self) -> int | None:
        return self._due_at_ms if self._since_ms is not None else None
