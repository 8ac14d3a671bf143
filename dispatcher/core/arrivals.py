"""Originals coming in: into their group's backlog, or to the dead queue with a reason."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.core.dead_letters import dead_letter
from dispatcher.core.events import MessagesArrived
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.model import Original
from dispatcher.core.state import LaneState

REASON_UNGROUPED = "ungrouped"


class Arrivals(Feature):
    """Files every original that the broker delivers."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self._signals = state.signals
        self._grouped = state.policy.grouped
        ungrouped, _, name = state.options.ungrouped.partition(":")
        self._rejects_ungrouped = ungrouped == "reject"
        self._common_group = name.encode() if ungrouped == "group" else None

    def events(self) -> Mapping[type, Handler]:
        return {MessagesArrived: self.arrived}

    def arrived(self, event: MessagesArrived) -> None:
        """Take in deliveries, in their queues' order."""
        state, signals = self._state, self._signals
        claiming = signals.claiming
        for message in event.messages:
            if not message.is_marker:
                inbound = state.inbounds[message.inbound]
                inbound.take_in(message)
                state.bytes_held += message.footprint
                self.set_common_group(message)
                if inbound.recovery is not None and any(claims(inbound, message) for claims in claiming):
                    continue
                for delivered in signals.delivered:
                    delivered(message)
            if not (signals.deferring and any(defers(message) for defers in signals.deferring)):
                self.accept(message)

    def set_common_group(self, message: Original) -> None:
        """A message without a group belongs to that of the lane's option, if there is one."""
        if message.group_id is None:
            message.group_id = self._common_group

    def accept(self, message: Original) -> None:
        """It has arrived, and no feature holds it back."""
        if message.is_marker:
            for marked in self._signals.marked:
                marked(message)
            return
        for accepted in self._signals.accepted:
            accepted(message)
        if message.refusal is None and (message.group_id is not None or not self._rejects_ungrouped):
            self.file(message)
        else:
            dead_letter(self._state, message, message.refusal or REASON_UNGROUPED)

    def file(self, message: Original) -> None:
        """It waits: to be moved on along its group's route, or in its backlog."""
        state, group_id = self._state, message.group_id
        inbound = state.inbounds[message.inbound]
        inbound.begin_to_wait()
        if message.deadline_at_ms is not None:
            state.deadlines.watch(message)
        if group_id is None or not self._grouped:
            state.wait_ungrouped(message)
        else:
            group = state.groups.get(group_id) if state.keys_are_ids else None
            if group is None:
                group = state.group(group_id)
            for relocates in self._signals.routing:
                if relocates(group, message):
                    return
            backlog = inbound.backlog_of(group)
            if state.insert is None:
                backlog.messages.append(message)
            else:
                state.insert(backlog, message)
            if backlog.listed_in is None:
                state.list_backlog(backlog)
        for filed in self._signals.filed:
            filed(message)
