"""How much of a group is not settled, wherever it is, and since when."""

from __future__ import annotations

from dispatcher.core.model import Group
from dispatcher.core.state import LaneState


def depth(state: LaneState, group: Group) -> int:
    """Its messages that wait, are in flight or are parked; expired ones may still be counted."""
    here = sum(len(backlog.messages) for backlog in group.backlogs.values()) if group.backlogs else 0
    return group.in_flight + here + state.parking.parked(group)


def oldest_ms(state: LaneState, group: Group, here_ms: int | None) -> int | None:
    """Since when the oldest waits, here (`here_ms`) or parked; None: none does."""
    known = (here_ms, state.parking.since_ms(group))
    return min((since_ms for since_ms in known if since_ms is not None), default=None)
