"""Messages that begin or end to wait otherwise than by an arrival or a hand-over.

Capabilities call this: consumers die, messages expire, operators take messages out. A plain lane never does.
"""

from __future__ import annotations

from collections.abc import Iterator

from dispatcher.core.model import WAITING, Backlog, Group, Original
from dispatcher.core.state import LaneState


def group_of(state: LaneState, message: Original) -> Group | None:
    """The group to which the message belongs, if there is one."""
    if message.group is None and message.group_id is not None:
        return state.groups.get(state.key_of(message.group_id))
    return message.group


def waits_here(message: Original) -> bool:
    """It waits in a backlog or among those without a group, and is not on its way to another queue."""
    return message.state is WAITING and message.relocation is None


def backlog_of(state: LaneState, message: Original) -> Backlog | None:
    """Where it waits; None: among those without a group, or on its way to another queue."""
    if message.relocation is not None:
        return None
    group = group_of(state, message)
    if group is None or group.backlogs is None or not state.policy.grouped:
        return None
    return group.backlogs.get(message.inbound)


def waiting_here(group: Group) -> Iterator[Original]:
    """The messages of the group that wait here, backlog by backlog. Changes nothing."""
    for backlog in (group.backlogs or {}).values():
        for message in backlog.messages:
            if message.state is WAITING:
                yield message


def count_waiting(group: Group) -> int:
    """How many messages of the group wait here."""
    return sum(1 for _ in waiting_here(group))


def count_waiting_anywhere(state: LaneState, group: Group) -> int:
    """The same, with those that are parked; of these also the ones in flight."""
    return sum(not message.is_parked for message in waiting_here(group)) + state.parking.parked(group)


def waits_since_ms(group: Group) -> int | None:
    """When the oldest message of the group that waits here was first received; None: none waits."""
    heads = (backlog.head() for backlog in (group.backlogs or {}).values())
    return min((head.waits_since_ms for head in heads if head is not None), default=None)


# -- they wait again --


def wait_again(state: LaneState, message: Original) -> None:
    """A message that was handed over waits once more; the caller puts it back into its backlog."""
    if message.state is not WAITING:
        message.become(WAITING)
    state.inbounds[message.inbound].begin_to_wait()
    for returned in state.signals.returned:
        returned(message)
    state.revoked.add(message)
    state.deadlines.watch(message)


def put_back(backlog: Backlog, messages: list[Original]) -> None:
    """Insert messages that are older than some that wait, by their ranks."""
    messages.sort(key=lambda message: message.rank)
    waiting = backlog.messages
    if waiting and waiting[0].rank < messages[-1].rank:
        merged = sorted([*waiting, *messages], key=lambda message: message.rank)
        waiting.clear()
        waiting.extend(merged)
    else:
        waiting.extendleft(reversed(messages))


def put_in_front(state: LaneState, message: Original, group: Group) -> None:
    """A message that was handed over waits before everything newer of its group."""
    backlog = state.inbounds[message.inbound].backlog_of(group)
    put_back(backlog, [message])
    backlog.leave()  # a suspect may stand before what it was listed for
    state.list_backlog(backlog)


# -- they wait no more --


def forget_if_empty(state: LaneState, backlog: Backlog) -> None:
    """Give back the memory of a backlog that ran empty. The caller must not keep it then: another group will
    get it."""
    if backlog.head() is None:
        state.inbounds[backlog.inbound].forget_empty(backlog)


def head_changed(state: LaneState, backlog: Backlog) -> None:
    """A message was taken out: forget the backlog if it is empty, else list it if it may be served."""
    forget_if_empty(state, backlog)
    state.list_backlog(backlog)


def remove_waiting(state: LaneState, message: Original) -> None:
    """A message that waited is found to be out already: it waits no more. Its group is kept for it."""
    backlog = backlog_of(state, message)
    if backlog is not None:
        backlog.messages.remove(message)
    else:
        leave_ungrouped(state, message)
    state.inbounds[message.inbound].end_to_wait()
    state.leave_wait(message)
    if backlog is not None:
        head_changed(state, backlog)


def leave_ungrouped(state: LaneState, message: Original) -> None:
    """The opposite of `LaneState.wait_ungrouped`."""
    if message in state.suspects:
        state.suspects.discard(message)
    else:
        state.inbounds[message.inbound].ungrouped.messages.remove(message)


def waits_no_more(state: LaneState, message: Original) -> None:
    """A message ended while it waited: its group is forgotten if nothing else is left of that."""
    state.inbounds[message.inbound].end_to_wait()
    backlog = backlog_of(state, message)
    message.relocation = None
    if backlog is not None:
        group = backlog.group
        head_changed(state, backlog)
        state.forget_if_unused(group)
        state.rested(group)
