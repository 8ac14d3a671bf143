"""What messages waited for last: the cause that ended in the step that handed them over."""

from __future__ import annotations

from dispatcher.core.orders import LogEvent
from dispatcher.core.records import Dispatched
from dispatcher.ledger.schema import WaitCause
from dispatcher.wire.group_text import format_group


class Waits:
    """What ended in the step that is looked at."""

    def __init__(self, *, groups_first: bool) -> None:
        self.groups_first = groups_first  # the end of a group's message lets its others go
        self.prefetch: dict[int, int] = {}  # by the number of the incarnation
        self.ended_groups: set[bytes | None] = set()
        self.somebody_came = False
        self._full: set[int] = set()  # consumers without credit when the step began
        self._resumed: set[str] = set()
        self._lane_resumed = False

    def begin_step(self) -> None:
        if self.ended_groups:
            self.ended_groups.clear()
        if self._full:
            self._full.clear()
        self.somebody_came = self._lane_resumed = False
        if self._resumed:
            self._resumed.clear()

    def told(self, tell: LogEvent) -> None:
        """Something that an operator did, among others."""
        if tell.event == "group_resumed":
            self._resumed.add(tell.fields["group"])
        self._lane_resumed |= tell.event == "lane_resumed"

    def settles(self, number: int, in_hand: int) -> None:
        """An incarnation that has that many messages in hand settles some."""
        if in_hand >= self.prefetch.get(number, in_hand + 1):
            self._full.add(number)

    def cause(self, order: Dispatched) -> WaitCause:
        """What a message that is handed over now waited for last."""
        message = order.message
        if order.attempt > 1:
            return WaitCause.RETRY
        if message.is_parked:
            return WaitCause.PARKED
        if self._lane_resumed or (self._resumed and format_group(message.group_id or b"") in self._resumed):
            return WaitCause.PAUSED
        if message.group_id is not None and message.group_id in self.ended_groups:
            return WaitCause.GROUP
        if order.incarnation in self._full:
            return WaitCause.WINDOW
        return WaitCause.CONSUMER if self.somebody_came else WaitCause.TURN
