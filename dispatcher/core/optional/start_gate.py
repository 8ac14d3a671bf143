"""The delay before a lane hands anything out: until enough consumers are here, or for some time (C11–C16).

It begins when the first consumer comes and is over when there are as many as wanted, or the time is up. It is
asked for once more when the last one has gone.
"""

from __future__ import annotations

from typing import Final

from dispatcher.core.bounds import NEVER_MS
from dispatcher.core.effects import Snapshot
from dispatcher.core.feature import Feature
from dispatcher.core.state import LaneState

#: Who wants a number of consumers and says no time waits that long for them (C14).
WAIT_MS: Final = 1_000


class StartGate(Feature):
    """Keeps the lane from beginning; the state knows until when (`begins_at_ms`)."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self.consumers = state.options.start_consumers  # wanted; 0: the time alone counts
        self._wait_ms = state.options.start_wait_ms or WAIT_MS
        state.begins_at_ms = NEVER_MS  # no consumer is here

    def load(self, snapshot: Snapshot) -> None:
        """A lane that has begun before goes on under its new leader."""
        state = self._state
        if snapshot.owners or any(consumer.in_flight for consumer in state.by_uuid.values()):
            state.begins_at_ms = state.now_ms

    def before_pass(self) -> None:
        """See who is here. O(1); O(consumers) while the lane waits for a number of them."""
        state = self._state
        if not state.by_uuid:
            state.begins_at_ms = NEVER_MS
            return
        if state.begins_at_ms == NEVER_MS:
            state.begins_at_ms = state.now_ms + self._wait_ms
        if self.consumers and state.now_ms < state.begins_at_ms and live_consumers(state) >= self.consumers:
            state.begins_at_ms = state.now_ms

    def next_deadline_ms(self) -> int | None:
        state = self._state
        if state.now_ms < state.suspended_until_ms or not state.now_ms < state.begins_at_ms < NEVER_MS:
            return None
        return state.begins_at_ms


def live_consumers(state: LaneState) -> int:
    return sum(consumer.is_open for consumer in state.by_uuid.values())
