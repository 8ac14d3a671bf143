"""One place where the flags of a group change: here, in Redis and in what may be served."""

from __future__ import annotations

from typing import Final

from dispatcher.core.groups import Group, GroupFlags
from dispatcher.core.state import LaneState

#: Before a group's id: the key of its row.
GROUP: Final = b"group:"


def keep_flags(state: LaneState, group: Group, flags: GroupFlags) -> None:
    """Commit what is said of a group, and let it be served, or not, as that says."""
    group.flags = flags if flags else None
    if flags:
        state.groups_with_flags.add(group)
    else:
        state.groups_with_flags.discard(group)
    state.effects.flags[GROUP + group.id] = flags.row()
    state.list_backlogs(group)
    state.forget_if_unused(group)
