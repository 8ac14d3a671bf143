"""Copies that are published once more: their consumers may never have got them."""

from __future__ import annotations

from dispatcher.core.consumer_life import REACHABLE
from dispatcher.core.entries import copy_of, open_entry
from dispatcher.core.model import Consumer, Group, Original
from dispatcher.core.ordered import OrderedSet
from dispatcher.core.orders import SendCopy
from dispatcher.core.recovery.copies import Copies
from dispatcher.core.state import LaneState


class Resending:
    """Publishes copies again, with the numbers that they have, or with new ones."""

    def __init__(self, state: LaneState) -> None:
        self._state = state

    def send(self, message: Original) -> None:
        """Publish a copy again with the numbers it has, if that can be and its consumer misses it."""
        consumer = message.consumer
        if consumer is None or consumer.state not in REACHABLE or not message.is_here:
            return
        if consumer.note(Copies).has(message.seq):
            return
        state = self._state
        state.unconfirmed += 1
        state.unconfirmed_bytes += message.size
        state.effects.actions.append(SendCopy(copy_of(message, consumer)))
        state.counters["sent_again"] += 1

    def send_all(self, messages: list[Original]) -> None:
        """Publish these copies again, in this order, those of a broken group with new numbers."""
        numbers = _NewNumbers(self._state)
        for message in messages:
            holder, group = message.consumer, message.group
            if holder is None or holder.note(Copies).has(message.seq):
                continue
            if group is not None and group in holder.note(Copies).broken:
                numbers.give(message, group, holder)
            self.send(message)
        for holder, group in numbers.given:
            holder.note(Copies).broken.discard(group)

    def send_renumbered(self, group: Group, messages: list[Original]) -> None:
        """Publish these copies of one consumer, in this order, as the beginning of a new epoch."""
        numbers = _NewNumbers(self._state)
        for message in messages:
            assert message.consumer is not None
            numbers.give(message, group, message.consumer)
            self.send(message)


class _NewNumbers:
    """Numbers for copies that are sent again: they count from 1 for each holder and id, under a new epoch."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self._last: dict[tuple[Consumer, bytes | None], tuple[int, int]] = {}  # epoch, group-seq
        self.given: OrderedSet[tuple[Consumer, Group]] = OrderedSet()

    def give(self, message: Original, group: Group, holder: Consumer) -> None:
        """The number behind those that this holder got of this id before."""
        line = (holder, message.group_id)
        epoch, last_seq = self._last.get(line) or (self._new_epoch(holder, group), 0)
        self.given.add((holder, group))
        message.epoch, message.group_seq = self._last[line] = epoch, last_seq + 1
        if group.owner is holder:
            group.renumbered(message)
        self._state.effects.records.append(open_entry(message))

    def _new_epoch(self, holder: Consumer, group: Group) -> int:
        """Of the owner's group it is that of the assignment: the next dispatches go on with it."""
        if group.owner is not holder or (holder, group) in self.given:
            return self._state.next_epoch()
        self._state.begin_epoch(group)
        return group.epoch
