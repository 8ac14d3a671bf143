"""`ack_timeout`: tells which consumers have had messages for too long, and evicts them if the lane says so.

Lateness can't be inferred from the last message that we received: RabbitMQ may hold settles back. So while
anything is in flight the dispatcher sends itself a marker through the control queue. When it is back,
RabbitMQ has every copy that was sent before it, and every settle confirmed before it has been read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from dispatcher.core.consumer_life import PRESENT
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.membership.evictions import EvictedBy, Evictions, Overdue
from dispatcher.core.model import Consumer, Group, Original
from dispatcher.core.orders import PublishMarker
from dispatcher.core.records import Dispatched
from dispatcher.core.state import LaneState
from dispatcher.wire.protocol import Marker

#: What a marker has for an incarnation that is about all of them.
EVERYBODY: Final = "*"
#: How many points in time are kept of one `ack_timeout`: an overdue message is noticed that part of it later.
ARRIVALS_MAX: Final = 64


class _Arrived(NamedTuple):
    """RabbitMQ had everything that was handed over by `handed_over_ms` at `until_ms`, or before."""

    handed_over_ms: int
    until_ms: int


class AckTimeout(Feature):
    """Asks RabbitMQ now and then for its view, and finds overdue messages."""

    def __init__(self, state: LaneState, evictions: Evictions, timeout_ms: int) -> None:
        self._state = state
        self._evictions = evictions
        self._timeout_ms = timeout_ms
        self._next_look_ms = 0
        self._asked = 0  # markers that asked what RabbitMQ has for us
        self._asked_at_ms: int | None = None  # the last one, while it is on its way
        self._handed_over_ms = 0  # copies that were handed over by then went to RabbitMQ before it
        self._answered_at_ms = 0
        self._arrived: deque[_Arrived] = deque()  # not `ack_timeout` ago
        self._late_up_to_ms: int | None = None  # messages that were handed over by then had their time
        state.signals.returned.append(_is_not_late)
        state.explanation.details.append(_details)

    def events(self) -> Mapping[type, Handler]:
        return {Marker: self.marker}

    def next_deadline_ms(self) -> int | None:
        return self._next_look_ms if self._may_ask() else None

    def finish_step(self) -> None:
        """While anything is in flight, ask RabbitMQ what it has, as often as consumers are looked after, by a
        marker through the control queue. A dispatcher that has received nothing for a while can't know who
        settled in time, or had the time to."""
        state, timeout_ms = self._state, self._timeout_ms
        self._leave_out_what_follows()
        if not self._may_ask() or state.now_ms < self._next_look_ms:
            return
        if self._asked:
            arrived = _Arrived(self._handed_over_ms, self._answered_at_ms)
            self._note_arrival(arrived, timeout_ms // ARRIVALS_MAX)
        self._next_look_ms = state.now_ms + min(state.options.liveness_interval_ms, timeout_ms)
        self._asked_at_ms = self._handed_over_ms = state.now_ms
        self._asked += 1
        state.effects.actions.append(PublishMarker(EVERYBODY, self._asked))

    def _leave_out_what_follows(self) -> None:
        """A later step of the millisecond in which it was asked may hand something over: that goes behind the
        question, and perhaps long after it, as it waits for its commit."""
        state = self._state
        is_tie = state.now_ms == self._handed_over_ms
        if is_tie and any(type(record) is Dispatched for record in state.effects.records):
            self._handed_over_ms -= 1

    def _may_ask(self) -> bool:
        state = self._state
        if state.lane_holds.publishers_blocked or self._asked_at_ms is not None:
            return False
        return any(inbound.in_flight for inbound in state.inbounds)

    def marker(self, marker: Marker) -> None:
        """The marker that was sent last is back. So RabbitMQ has all copies that were handed over before, and
        this dispatcher has read every settle that RabbitMQ confirmed before: see which consumers have a
        message for too long."""
        state = self._state
        timeout_ms, asked_at_ms = self._timeout_ms, self._asked_at_ms
        if asked_at_ms is None:
            return
        is_ours = marker.incarnation == EVERYBODY and marker.lane_epoch == state.lane_epoch
        if not is_ours or marker.n != self._asked:
            return
        self._asked_at_ms, self._answered_at_ms = None, state.now_ms
        late_from_ms = asked_at_ms - timeout_ms
        while self._arrived and self._arrived[0].until_ms <= late_from_ms:
            self._late_up_to_ms = self._arrived.popleft().handed_over_ms
        if state.lane_holds.publishers_blocked or state.patience_from_ms > late_from_ms:
            return
        if self._late_up_to_ms is None:
            return
        for consumer in list(state.by_uuid.values()):
            is_late = consumer.state in PRESENT and self._report(consumer, self._late_up_to_ms)
            if is_late and state.options.evicts_overdue:
                self._evictions.evict(consumer, EvictedBy.ACK_TIMEOUT)

    def _note_arrival(self, arrived: _Arrived, apart_ms: int) -> None:
        """Every second one is kept where they come closer to each other."""
        if len(self._arrived) > 1 and arrived.until_ms - self._arrived[-2].until_ms < apart_ms:
            self._arrived.pop()
        self._arrived.append(arrived)

    def _report(self, consumer: Consumer, handed_over_ms: int) -> bool:
        """Tell of messages that are overdue, each once; whether there is any. In flight they are in the order
        of their dispatch."""
        state = self._state
        overdue = consumer.note(Overdue)
        overdue.count = 0
        for message in consumer.in_flight.values():
            if message.dispatched_at_ms > handed_over_ms:
                break
            overdue.count += 1
            if not message.overdue:
                message.overdue = True
                state.counters["overdue"] += 1
                state.log_message(
                    message, "message_overdue", consumer=consumer.id, seq=message.seq, attempt=message.attempt
                )
        return overdue.count > 0


def _is_not_late(message: Original) -> None:
    """It waits once more: its next consumer has all its time."""
    message.overdue = False


def _details(_: Group, out: list[Original]) -> list[str]:
    """What `groups why` adds."""
    if not out or not out[0].overdue:
        return []
    return ["the message in front is overdue: its consumer did not settle it within ack_timeout"]
