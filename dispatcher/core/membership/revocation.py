"""Revocation: the messages and groups of an incarnation that has ended."""

from __future__ import annotations

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.dead_letters import dead_letter
from dispatcher.core.membership.evictions import ending_of
from dispatcher.core.membership.rows import commit_incarnation
from dispatcher.core.model import OWNED, Backlog, Consumer, Group, GroupState, MessageState, Original
from dispatcher.core.ordered import OrderedSet
from dispatcher.core.ownership import change_owner, disown, drain, retarget
from dispatcher.core.records import IncarnationEnded
from dispatcher.core.state import LaneState
from dispatcher.core.waiting import put_back, wait_again


class Revocation:
    """Returns what a consumer holds to where it came from, in order."""

    def __init__(self, state: LaneState) -> None:
        self._state = state

    def revoke(self, consumer: Consumer) -> None:
        """End an incarnation: its word counts no more, its messages and groups go to others."""
        state = self._state
        consumer.become(ConsumerState.REVOKED)
        state.pool.discard(consumer)
        state.effects.records.append(IncarnationEnded(consumer.number))
        commit_incarnation(state, consumer)
        del state.by_uuid[consumer.uuid], state.by_id[consumer.id], state.by_number[consumer.number]
        if state.by_queue.get(consumer.queue) is consumer:
            del state.by_queue[consumer.queue]
        for ended in state.signals.consumer_ended:
            ended(consumer)
        groups, messages = len(consumer.groups), len(consumer.in_flight)
        state.log_event("consumer_taken_back", consumer=consumer.id, groups=groups, messages=messages)
        touched = self._return_messages(consumer, *self._find_killer(consumer))
        _stop_incoming(state, consumer)
        for group in list(consumer.groups):
            if group.in_flight:  # another incarnation still has some: wait for it
                drain(state, group, group.target)
                disown(state, group)
            else:
                change_owner(state, group)
        for group in touched:  # of a group that is not its own it held the last one
            if not group.in_flight and group.state in (GroupState.DRAINING, GroupState.BATCHED):
                change_owner(state, group)
            else:  # it moved without a pause
                state.relist_backlogs(group)
                state.forget_if_unused(group)
        state.counters["consumers_taken"] += 1

    def _find_killer(self, consumer: Consumer) -> tuple[Original | None, str]:
        """The message that is to end because it has killed the consumer, and the reason. Its group may stop
        at it instead."""
        signals = self._state.signals
        for blame in signals.blaming:
            blamed = blame(consumer, ending_of(consumer))
            if blamed is not None and not any(stops_at(*blamed) for stops_at in signals.failing):
                return blamed
        return None, ""

    def _return_messages(self, consumer: Consumer, killer: Original | None, why: str) -> OrderedSet[Group]:
        """Its unsettled messages go back in front of everything newer of their groups, in queue order; the
        one that has killed it goes to the dead queue.

        Returns the groups that it held messages of.
        """
        state = self._state
        touched: OrderedSet[Group] = OrderedSet()
        returned: dict[Backlog, list[Original]] = {}
        ungrouped: dict[int, list[Original]] = {}
        not_back: list[Original] = []
        for message in consumer.in_flight.values():
            message.consumer = None
            message.become(MessageState.WAITING)
            group = message.group
            if group is not None:
                group.count_back(message)
                touched.add(group)
            if message.is_here:
                state.inbounds[message.inbound].count_back()
            if message is killer:
                dead_letter(state, message, why)
                continue
            if not message.is_here:
                not_back.append(message)
                continue
            wait_again(state, message)
            if group is not None:
                backlog = state.inbounds[message.inbound].backlog_of(group)
                returned.setdefault(backlog, []).append(message)
            elif not any(takes(message) for takes in state.signals.setting_aside):
                ungrouped.setdefault(message.inbound, []).append(message)
            state.counters["taken_back"] += 1
        consumer.in_flight.clear()
        for backlog, messages in returned.items():
            put_back(backlog, messages)
        for index, messages in ungrouped.items():
            messages.sort(key=lambda message: message.tag)
            state.inbounds[index].ungrouped.messages.extendleft(reversed(messages))
            state.inbounds[index].enlist(state.inbounds[index].ungrouped)
        state.absent.revoked_before_their_return(not_back)
        return touched


def vacate(state: LaneState, consumer: Consumer) -> None:
    """Give it nothing more: each of its groups goes to another consumer once none of its messages is in
    flight."""
    _stop_incoming(state, consumer)
    for group in list(consumer.groups):
        if not group.in_flight:
            change_owner(state, group)
        elif group.state is GroupState.OWNED:
            drain(state, group)


def _stop_incoming(state: LaneState, consumer: Consumer) -> None:
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
