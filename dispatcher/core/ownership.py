"""A group leaves its owner: at once, or when nothing of it is in flight any more.

Capabilities call this; so does the spine when the last message of a group without a lasting owner is settled,
and when a message closes its group. A group gets an owner in one way only, by `LaneState.assign`.
"""

from __future__ import annotations

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.model import FREE, OWNED, Consumer, Group, GroupState
from dispatcher.core.state import LaneState


def drain(state: LaneState, group: Group, target: Consumer | None = None) -> None:
    """The owner gets no more of it; when nothing of it is in flight any more it changes its owner."""
    if group.state is not GroupState.DRAINING:
        group.become(GroupState.DRAINING)
    retarget(state, group, target)
    state.relist_backlogs(group)


def close(state: LaneState, group: Group) -> None:
    """Any consumer may take the group once nothing of it is in flight: at once if nothing is.

    Committed now: a new leader may read the last settle before it sees that its message closed the group.
    """
    drain(state, group)
    if state.policy.keeps_owner:
        state.effects.owners[group.id] = None
    if not group.in_flight:
        change_owner(state, group)


def retarget(state: LaneState, group: Group, target: Consumer | None) -> None:
    """Set the next owner of a draining group; None: the next consumer that takes it."""
    if group.target is not None:
        group.target.incoming.discard(group)
    group.target = target
    if target is not None:
        target.incoming.add(group)


def change_owner(state: LaneState, group: Group) -> None:
    """Nothing of this DRAINING or BATCHED group is in flight: it gets its next owner, or becomes free."""
    target = group.target
    release(state, group)
    if target is not None and target.stays:
        state.groups[group.id] = group  # an empty group was forgotten a moment ago
        state.assign(group, target, OWNED)


def release(state: LaneState, group: Group) -> None:
    """The group has no owner from now on; it is forgotten when it has no messages and no settings."""
    disown(state, group)
    retarget(state, group, None)
    group.epoch, group.fresh = 0, False
    if group.state is not FREE:
        group.become(FREE)
    state.relist_backlogs(group)
    state.forget_if_unused(group)


def disown(state: LaneState, group: Group) -> None:
    """The group has no owner any more; what Redis says of it goes, now or some steps later."""
    owner = group.owner
    if owner is None:
        return
    owner.groups.discard(group)
    state.pool.level_changed(owner)
    group.owner = None
    if state.policy.keeps_owner:
        if owner.state is ConsumerState.REVOKED:
            state.stale_owners.append(group.id)
        else:
            state.effects.owners[group.id] = None
