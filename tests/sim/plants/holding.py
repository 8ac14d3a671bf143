"""Bugs of lanes that wait for gaps in the numbers of producers."""

from __future__ import annotations

from typing import Any

from dispatcher.core.optional.sequence_hold import SequenceHold
from tests.sim.plants.planting import planted


@planted("sequence", seed=1286)
def gap_not_waited_for(lane: Any, session: Any, store: Any) -> None:
    """Messages behind a gap go at once although the lane should wait."""
    hold = lane.state.find(SequenceHold)
    if hold is not None:
        lane.state.eligibility.new_checks.remove(hold._held_by)


@planted("sequence", seed=889)
def late_number_at_the_end(lane: Any, session: Any, store: Any) -> None:
    """In a lane that waits for gaps a late message is filed behind larger numbers."""
    if lane.state.insert is not None:
        lane.state.insert = lambda backlog, message: backlog.messages.append(message)
