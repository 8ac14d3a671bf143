"""What operators see of flags and stops, as plain values. `views` shows it; it changes nothing."""

from __future__ import annotations

from typing import Any

from dispatcher.core.model import Group
from dispatcher.core.operators.flags import is_paused, operation_on
from dispatcher.core.operators.stop import stop_of
from dispatcher.core.state import LaneState


def flag_status(state: LaneState) -> dict[str, Any]:
    """How many groups of the lane have which flag, and how many operations are open."""
    groups = state.groups_with_flags
    return {
        "groups_paused": sum(map(is_paused, groups)),
        "groups_pinned": sum(group.pin is not None for group in groups),
        "groups_stopped": sum(stop_of(group) is not None for group in groups),
        "operations": sum(operation_on(group) is not None for group in groups),
    }


def flag_row(group: Group) -> dict[str, Any]:
    """The flags of one group, for its row."""
    stop = stop_of(group)
    return {
        "paused": is_paused(group),
        "stopped": stop.reason if stop is not None else None,
        "pin": group.pin,
        "operation": operation_on(group),
    }
