"""Consumers come and go: when a lane is rebalanced by itself."""

from __future__ import annotations

from typing import Final

from dispatcher.core.feature import Feature
from dispatcher.core.model import Consumer
from dispatcher.core.operators.rebalance import Rebalance
from dispatcher.core.state import LaneState

#: An operator who starts ten consumers, or replaces them one by one, wants one rebalance. It comes when no
#: consumer has come or gone for this time …
QUIET_MS: Final = 1_000
#: … or this time after the first one came, however many still do.
DELAY_MS_MAX: Final = 10_000


class AutoRebalance(Feature):
    """Rebalances a lane to which consumers have come (`on_join`, A15)."""

    def __init__(self, state: LaneState, rebalance: Rebalance) -> None:
        self._state = state
        self._rebalance = rebalance
        self._since_ms: int | None = None  # a consumer came, and the lane has not been rebalanced since
        self._due_at_ms = 0
        state.signals.consumer_joined.append(self._joined)
        state.signals.consumer_leaves.append(self._left)
        state.signals.consumer_ended.append(self._left)

    def _joined(self, consumer: Consumer) -> None:
        if self._since_ms is None:
            self._since_ms = self._state.now_ms
        self._left(consumer)

    def _left(self, _: Consumer) -> None:
        """Its groups find new owners by themselves, and a rebalance waits for that."""
        if self._since_ms is not None:
            self._due_at_ms = min(self._state.now_ms + QUIET_MS, self._since_ms + DELAY_MS_MAX)

    def before_pass(self) -> None:
        """Make the numbers of groups even."""
        state = self._state
        if self._since_ms is None or state.now_ms < self._due_at_ms:
            return
        if state.reset_until is None and not state.eligibility.is_suspended(state.now_ms):
            self._since_ms = None
            moves = self._rebalance.plan(group_id=None, to=None)
            if moves:
                state.counters["rebalances_on_join"] += 1
                self._rebalance.start(moves, state.options.rebalance_pause)

    def next_deadline_ms(self) -> int | None:
        waits = self._since_ms is not None and not self._state.eligibility.is_suspended(self._state.now_ms)
        return self._due_at_ms if waits else None
