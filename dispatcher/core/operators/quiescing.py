"""`pause: lane`: a rebalance holds the whole lane until everything in flight is settled (A16)."""

from __future__ import annotations

from typing import Final

from dispatcher.core.feature import Feature
from dispatcher.core.holds import Facts, HoldKind
from dispatcher.core.state import LaneState
from dispatcher.core.wording import in_flight_are

#: Of the consumers that the lane waits for.
HOLDERS_SHOWN: Final = 5


class Quiescing(Feature):
    """Holds the lane, and lets it go on."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self.pending = (False,)
        state.explanation.sentences[HoldKind.QUIESCING] = _sentence

    def begin_waiting(self) -> None:
        """Nothing is handed out until everything is settled."""
        self.pending = (True,)
        self._state.lane_holds.put(HoldKind.QUIESCING, self._facts)

    def before_pass(self) -> None:
        """See whether everything is settled. O(consumers), while the lane waits for that."""
        state = self._state
        if state.reset_until is not None or any(c.in_flight for c in state.by_uuid.values()):
            return
        self.pending = (False,)
        state.lane_holds.lift(HoldKind.QUIESCING)
        state.log_event("lane_goes_on")

    def _facts(self) -> Facts:
        holders = [consumer for consumer in self._state.by_uuid.values() if consumer.in_flight]
        return {
            "in_flight": sum(len(consumer.in_flight) for consumer in holders),
            "consumers": {consumer.id: len(consumer.in_flight) for consumer in holders[:HOLDERS_SHOWN]},
        }


def _sentence(facts: Facts) -> str:
    names = ", ".join(f"{name} has {count}" for name, count in facts["consumers"].items())
    return f"A rebalance holds the lane until {in_flight_are(facts)} settled: {names}."
