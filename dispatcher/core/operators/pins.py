"""Pinned groups follow the present incarnation of the consumer that they are pinned to."""

from __future__ import annotations

from dispatcher.core.consumers import Consumer
from dispatcher.core.state import LaneState


def point_pins(state: LaneState, consumer_id: str, consumer: Consumer | None) -> None:
    """That consumer has a new incarnation, or none any more: its groups wait for it, and for nobody else."""
    for group in state.groups_with_flags:
        flags = group.flags
        if flags is not None and flags.pin == consumer_id:
            flags.consumer = consumer
            state.list_backlogs(group)
