"""Originals coming in: into their group's backlog, or to the dead queue with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dispatcher.core.bounds import DELIVERIES_MAX
from dispatcher.core.model import BarrierMark, Group, Message, MessageState
from dispatcher.core.optional.dedup import Dedup
from dispatcher.core.parking.queue import FIRST_PARKING_QUEUE
from dispatcher.core.parking.relocation import Relocations
from dispatcher.core.recovery.consumer_reports import ConsumerReports
from dispatcher.core.recovery.matching import Recovery
from dispatcher.core.state import LaneState
from dispatcher.protocol import REASON_EXPIRED

#: The mean size of originals is that of about so many.
SIZES_REMEMBERED: Final = 64

REASON_UNGROUPED = "ungrouped"


class Arrivals:
    """Files every original that the broker delivers, and ends those that expire while they wait."""

    def __init__(
        self,
        state: LaneState,
        recovery: Recovery,
        adoption: ConsumerReports,
        moves: Relocations,
        marked: Callable[[BarrierMark], None],
        dedup: Dedup | None = None,
    ) -> None:
        self._state = state
        self._dedup = dedup
        self._marked = marked  # an operation's marker is here
        self._moves = moves
        self._parks = bool(state.options.parking_queues)
        self._recovery = recovery
        self._adoption = adoption
        ungrouped = state.options.ungrouped
        self._rejects_ungrouped = ungrouped == "reject"
        self._common_group = (
            ungrouped.removeprefix("group:").encode() if ungrouped.startswith("group:") else None
        )

    def arrived(self, messages: list[Message]) -> None:
        """Take in deliveries, in their queues' order."""
        inbounds, dedup = self._state.inbounds, self._dedup
        self._state.hot_group.pass_time(self._state.now_ms)
        for message in messages:
            inbound = inbounds[message.inbound]
            inbound.latest = message.arrival
            if type(message) is BarrierMark:
                if dedup is None or not dedup.holds(message):
                    self._marked(message)
                continue
            mean, footprint = inbound.mean_bytes, message.footprint
            inbound.mean_bytes = mean + (footprint - mean) / SIZES_REMEMBERED if mean else footprint
            if message.group_id is None and self._common_group is not None:
                message.group_id = self._common_group
            if inbound.recovery is not None and self._recovery.claims(inbound, message):
                message.state = MessageState.SETTLED  # its entry stands for it, if it is not over
                if dedup is not None:
                    dedup.came_back(message)
                continue
            inbound.unacked += 1
            self._state.bytes_held += footprint
            if self._adoption.open:
                self._adoption.saw(message)
            if dedup is None or not dedup.holds(message):
                self._receive(message)

    def accept(self, message: Message) -> None:
        """It has arrived, and does not repeat another one."""
        if type(message) is BarrierMark:
            self._marked(message)
        else:
            self._receive(message)

    def _receive(self, message: Message) -> None:
        if self._state.sequences is not None:
            self._state.sequences.arrived(message)
        if message.refusal is not None:
            self._state.end(message, message.refusal)
        elif message.group_id is None and self._rejects_ungrouped:
            self._state.end(message, REASON_UNGROUPED)
        else:
            self._state.hot_group.count(self._state.member_key(message.group_id))
            self.file(message)

    def read_back(self, message: Message) -> None:
        """An original was read from a parking queue."""
        if message.group_id is None and self._common_group is not None:
            message.group_id = self._common_group
        self._state.bytes_held += message.footprint
        # When its consumers died is not known any more: only what is settled from now on proves anything.
        message.settles_at_death = self._state.settles
        if self._adoption.open:
            self._adoption.saw(message)
        if message.refusal is not None:
            self._state.end(message, message.refusal)
        else:
            self.file(message)

    def file(self, message: Message, passed: int | None = None) -> None:
        """It waits: to be moved on along its group's route, or in its backlog. The route's stops up to
        `passed` are behind it; the queue that it is in, if that is not given."""
        state = self._state
        inbound = state.inbounds[message.inbound]
        inbound.waiting += 1
        if message.deadline_at_ms is not None:
            state.expiries.watch(message)
        if message.group_id is None or not state.policy.grouped:
            if message.attempt >= state.suspect_after:  # it was parked after its consumer had died
                state.suspects.add(message)
            else:
                inbound.ungrouped.messages.append(message)
                inbound.enlist(inbound.ungrouped)
        else:
            group = state.group(message.group_id)
            if (group.route or state.parking.default_route) and self._moves_on(group, message, passed):
                return
            backlog = group.backlog(message.inbound)
            if state.sequence_hold is None or message.queue >= FIRST_PARKING_QUEUE:
                backlog.messages.append(message)
            else:
                state.sequence_hold.insert(backlog, message)
            if backlog.listed_in is None:
                state.list_backlog(backlog)
        if self._parks and message.queue == inbound.index:
            if message.deliveries < DELIVERIES_MAX:
                inbound.aging.append(message)
            else:
                inbound.aging.appendleft(message)

    def _moves_on(self, group: Group, message: Message, passed: int | None) -> bool:
        """Whether its group's route goes on from where it is; then it waits to be moved there."""
        parking = self._state.parking
        target = parking.next_stop(group, message.queue if passed is None else passed)
        if target is None:
            return False
        self._moves.wait(message, target)
        if not group.route:
            parking.passing[group.id] = None
        return True

    def run_timers(self) -> None:
        """Dead-letter what expired while it waited. In flight only the consumer may fail it, so nothing
        expires while consumers are being asked what they have."""
        if self._adoption.open:
            return
        for message in self._state.expiries.due(self._state.now_ms):
            self._state.end(message, REASON_EXPIRED)
            self._state.waits_no_more(message)
            self._state.counters["expired"] += 1
