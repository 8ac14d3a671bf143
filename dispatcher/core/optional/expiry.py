"""Ends messages that expire while they wait: they go to the dead queue."""

from __future__ import annotations

from dispatcher.core.dead_letters import dead_letter
from dispatcher.core.feature import Feature
from dispatcher.core.state import LaneState
from dispatcher.core.waiting import waits_no_more
from dispatcher.wire.protocol import REASON_EXPIRED


class Expiry(Feature):
    """Code that lets a message wait has `LaneState.deadlines` watch its deadline.

    In flight only the consumer may fail a message, so nothing expires while consumers are being asked which
    messages they have.
    """

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self.pending = (state.deadlines.heap,)

    def before_pass(self) -> None:
        state = self._state
        if state.lane_holds.consumers_asked:
            return
        for message in state.deadlines.due(state.now_ms):
            dead_letter(state, message, REASON_EXPIRED)
            waits_no_more(state, message)
            state.counters["expired"] += 1

    def next_deadline_ms(self) -> int | None:
        state = self._state
        if state.lane_holds.consumers_asked or state.now_ms < state.lane_holds.suspended_until_ms:
            return None
        return state.deadlines.next_ms()
