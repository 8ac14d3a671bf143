"""The one place where the flags of a group change: in the lane, in Redis, and in what may be served."""

from __future__ import annotations

from dispatcher.core.model import Consumer, Group
from dispatcher.core.operators.flags import GROUP, GroupFlags, pin_of
from dispatcher.core.state import LaneState


def keep_flags(state: LaneState, group: Group, flags: GroupFlags) -> None:
    """Commit the flags of a group, and list its backlogs anew as they say."""
    group.flags = flags if flags else None
    if flags:
        state.groups_with_flags.add(group)
    else:
        state.groups_with_flags.discard(group)
    state.effects.flags[GROUP + group.id] = flags.row()
    state.list_backlogs(group)
    state.forget_if_unused(group)


def point_pins(state: LaneState, consumer_id: str, consumer: Consumer | None) -> None:
    """That consumer has a new incarnation, or none any more: groups that are pinned to it wait for it."""
    for group in state.groups_with_flags:
        if pin_of(group) == consumer_id:
            group.pinned_to = consumer
            state.list_backlogs(group)
