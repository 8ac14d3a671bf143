"""The delay before a lane hands anything out: until enough consumers are here, or for some time (C11–C16).

It begins when the first consumer joins, and ends when there are as many as wanted, or the time is up. It
begins anew after the last consumer has gone.
"""

from __future__ import annotations

from typing import Final

from dispatcher.core.bounds import NEVER_MS
from dispatcher.core.effects import Snapshot
from dispatcher.core.feature import Feature
from dispatcher.core.holds import Facts, HoldKind
from dispatcher.core.state import LaneState

#: Who wants a number of consumers and says no time waits that long for them (C14).
WAIT_MS: Final = 1_000


class StartGate(Feature):
    """Holds a lane that has not begun."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self._consumers = state.options.start_consumers  # wanted; 0: the time alone counts
        self._wait_ms = state.options.start_wait_ms or WAIT_MS
        self._begin_at(NEVER_MS)  # no consumer is here
        state.explanation.sentences[HoldKind.NOT_BEGUN] = _sentence

    def load(self, snapshot: Snapshot) -> None:
        """A lane that has begun before goes on under its new leader."""
        state = self._state
        if snapshot.owners or any(consumer.in_flight for consumer in state.by_uuid.values()):
            self._begin_at(state.now_ms)

    def before_pass(self) -> None:
        """See who is here. O(1); O(consumers) while the lane waits for a number of them."""
        state = self._state
        if not state.by_uuid:
            self._begin_at(NEVER_MS)
            return
        if self._begins_at_ms == NEVER_MS:
            self._begin_at(state.now_ms + self._wait_ms)
        if state.now_ms >= self._begins_at_ms:
            state.lane_holds.lift(HoldKind.NOT_BEGUN)
        elif self._consumers and live_consumers(state) >= self._consumers:
            self._begin_at(state.now_ms)

    def _begin_at(self, at_ms: int) -> None:
        self._begins_at_ms = at_ms
        self._state.lane_holds.put(HoldKind.NOT_BEGUN, self._facts, until_ms=at_ms)

    def _facts(self) -> Facts:
        return {"consumers": live_consumers(self._state), "wanted": self._consumers}

    def next_deadline_ms(self) -> int | None:
        state = self._state
        if state.now_ms < state.lane_holds.suspended_until_ms:
            return None
        return self._begins_at_ms if state.now_ms < self._begins_at_ms < NEVER_MS else None


def live_consumers(state: LaneState) -> int:
    return sum(consumer.is_open for consumer in state.by_uuid.values())


def _sentence(facts: Facts) -> str:
    here, wanted = facts["consumers"], facts["wanted"]
    if "left_ms" not in facts:
        return "The lane has not begun: no consumer has joined it."
    of_wanted = f", {here} of {wanted} consumers are here" if wanted else ""
    return f"The lane has not begun{of_wanted}: it begins in {facts['left_ms']} ms at the latest."
