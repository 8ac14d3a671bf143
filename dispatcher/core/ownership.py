"""A group leaves its owner: at once, or when nothing of it is in flight any more.

Capabilities call this; so does the spine when a batch of a group is settled that keeps no owner, and when a
message closes its group. A group gets an owner in one way only, by `LaneState.assign`.
"""

from __future__ import annotations

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.model import FREE, OWNED, Consumer, Group, GroupState, Original
from dispatcher.core.state import LaneState
from dispatcher.core.tables import OwnerRow


def is_in_transition(group: Group) -> bool:
    """It changes its owner, or who has messages of it is not known yet: it can't be given to another one."""
    return group.state in (GroupState.DRAINING, GroupState.RECOVERING)


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
        nothing_in_flight(state, group)


def retarget(state: LaneState, group: Group, target: Consumer | None) -> None:
    """Set the next owner of a draining group; None: the next consumer that takes it."""
    if group.target is not None:
        group.target.incoming.discard(group)
    group.target = target
    if target is not None:
        target.incoming.add(group)


def next_owner(group: Group) -> Consumer | None:
    """Who has the group, or gets it once it is drained."""
    return group.target if group.state is GroupState.DRAINING else group.owner


def row_of(state: LaneState, group: Group) -> OwnerRow | None:
    """What Redis has to hold of its owner; None: nothing."""
    if group.target is not None:
        return OwnerRow(group.target.number, 0)
    if group.owner is None or group.state is GroupState.DRAINING:
        return None
    return state.owner_row(group, group.owner)


def stop_incoming(state: LaneState, consumer: Consumer) -> None:
    """No group goes to this consumer, which has ended or leaves: each stays at its owner, if that stays."""
    for group in list(consumer.incoming):
        retarget(state, group, None)
        owner = group.owner
        if owner is None or not owner.stays or group.pin not in (None, owner.id):
            continue
        if sum(message.group is group for message in owner.in_flight.values()) == group.in_flight:
            group.become(OWNED)
            state.commit_owner(group)
            state.relist_backlogs(group)
            state.rested(group)


def no_longer_in_flight(state: LaneState, group: Group, message: Original) -> None:
    """This message of the group is in flight no more: if none is now, the group may leave its owner.

    If it has the group's last number while others of the group are out, the next ones get a new epoch (O-3).
    For the journal forgets what has ended: a later leader would take the highest number that is still out for
    the last one, and would give this number a second time.
    """
    group.count_back(message)
    if not group.in_flight:
        nothing_in_flight(state, group)
    elif group.state is OWNED and group.gave_last(message):
        state.begin_epoch(group)


def nothing_in_flight(state: LaneState, group: Group) -> None:
    """Nothing of the group is in flight any more. One that recovers goes on when it is through."""
    if group.state is OWNED and state.policy.keeps_owner:
        for rested in state.signals.group_rested:
            rested(group)
        if state.stops_failed:
            state.relist_backlogs(group)
    elif group.state is not GroupState.RECOVERING:
        change_owner(state, group)


def change_owner(state: LaneState, group: Group) -> None:
    """Nothing of it is in flight: it gets its next owner, or becomes free."""
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
