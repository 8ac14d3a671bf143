"""Messages in flight whose original will not come back: only their consumers can still say anything."""

from __future__ import annotations

from dispatcher.core.model import Consumer, MessageState, Original
from dispatcher.core.notices import send_notice
from dispatcher.core.ordered import OrderedSet
from dispatcher.core.records import Vanished
from dispatcher.core.recovery.copies import Copies
from dispatcher.core.settlement import nothing_in_flight
from dispatcher.core.state import LaneState
from dispatcher.wire.protocol import TYPE_REJOIN


class LostOriginals:
    """Asks for them, and ends those that no consumer has."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self._asked: OrderedSet[Consumer] = OrderedSet()  # to join again: originals of theirs are gone

    def ask_for(self, message: Original, holder: Consumer) -> None:
        """Its settle is awaited, if the holder has it: the copy may never have been published."""
        copies = holder.note(Copies)
        if holder.depth is not None or copies.lacks(message.seq):  # a hand-over consumer says nothing
            self.drop(message, holder)
        elif not copies.has(message.seq) and holder not in self._asked:
            self._asked.add(holder)
            send_notice(self._state, holder, TYPE_REJOIN)

    def drop(self, message: Original, holder: Consumer) -> None:
        """Neither its queue nor its consumer has it: it is gone. Its group's numbers begin again, for the
        consumer would wait for the missing one."""
        del holder.in_flight[message.seq]
        holder.credit += 1
        message.become(MessageState.SETTLED)
        message.consumer = None
        self.forget(message)
        group = message.group
        if group is not None:
            holder.note(Copies).broken.add(group)
            if group.owner is holder:
                group.epoch = 0
            group.count_back(message)
            if not group.in_flight:
                nothing_in_flight(self._state, group)
            self._state.relist_backlogs(group)
        self._state.refresh_credit(holder)

    def forget(self, message: Original) -> None:
        """No consumer has it: end its entry."""
        self._state.effects.records.append(Vanished(message.queue, message.arrival))
        self._state.counters["vanished"] += 1
