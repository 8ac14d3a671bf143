"""Copies that got lost on their way to a consumer that is there.

A consumer finds a lost copy by itself when the next one of the group comes (its `x-dispatch-group-seq` is not
the next number). If none comes, only its heartbeats show it: they name the messages that it has. A message
that was handed over before the third last heartbeat, and that the latest does not name, is lost. A later one
may be on its way, or its settle. The consumer is asked to join again, and then gets the messages that it
misses once more (C-2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.events import PublishersBlocked
from dispatcher.core.feature import Feature, Handler
from dispatcher.core.model import Consumer
from dispatcher.core.notices import send_notice
from dispatcher.core.state import LaneState
from dispatcher.wire.protocol import TYPE_REJOIN, Heartbeat

#: A settle and a heartbeat take different ways: the settle of a message that was handed over before this many
#: heartbeats is on its way no more. Heartbeats that RabbitMQ had kept back come all at once: they are old and
#: don't count.
BEATS: Final = 3
#: A consumer that joins again and lacks copies as before has not lost them. They are late, and copies that
#: are sent again make them later. So the pause is twice as long each time; it doubles this often at most.
DOUBLED_MAX: Final = 6


class _Heard:
    """When the latest heartbeats came over the present connection of a consumer, the oldest first."""

    __slots__ = ("at_ms", "n")

    def __init__(self, n: int) -> None:
        self.n = n
        self.at_ms: deque[int] = deque(maxlen=BEATS)


class _Asked(NamedTuple):
    """A consumer has lacked copies since it last had all: what it was asked last."""

    n: int  # its join at that time
    doubled: int  # how often it had joined again in vain
    until_ms: int  # it is asked nothing before this time


class LostCopies(Feature):
    """Compares the messages that consumers name with those that were handed over to them."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self._heard: dict[Consumer, _Heard] = {}
        self._asked: dict[Consumer, _Asked] = {}
        state.signals.consumer_ended.append(self._ended)

    def events(self) -> Mapping[type, Handler]:
        return {Heartbeat: self._heartbeat, PublishersBlocked: self._blocked}

    def _blocked(self, event: PublishersBlocked) -> None:
        """RabbitMQ holds back copies, settles and heartbeats alike. So earlier heartbeats say nothing
        about a heartbeat that comes afterwards: settles that were held back may come after it."""
        self._heard.clear()

    def _forget(self, consumer: Consumer) -> None:
        self._heard.pop(consumer, None)

    def _ended(self, consumer: Consumer) -> None:
        self._forget(consumer)
        self._asked.pop(consumer, None)

    def _heartbeat(self, beat: Heartbeat) -> None:
        state = self._state
        consumer = state.by_uuid.get(beat.incarnation)
        if consumer is None:
            return
        is_there = consumer.state is ConsumerState.LIVE and consumer.queue == beat.queue
        if not is_there or not consumer.in_flight or state.lane_holds.publishers_blocked:
            self._forget(consumer)
            if is_there and not consumer.in_flight:
                self._asked.pop(consumer, None)  # it lacks nothing
            return
        heard = self._heard.get(consumer)
        if heard is None or heard.n != consumer.n:
            heard = self._heard[consumer] = _Heard(consumer.n)
        if len(heard.at_ms) == BEATS and state.now_ms - heard.at_ms[0] >= 2 * state.options.heartbeat_ms:
            count = self._count_lost(consumer, beat, heard.at_ms[0])
            if not count:
                self._asked.pop(consumer, None)
            elif self._may_ask(consumer):
                state.counters["copies_missed"] += count
                state.log_event("copies_missed", consumer=consumer.id, copies=count)
                send_notice(state, consumer, TYPE_REJOIN)
                heard.at_ms.clear()
        heard.at_ms.append(state.now_ms)

    def _may_ask(self, consumer: Consumer) -> bool:
        """Whether its pause has passed; a new one begins then."""
        now_ms, asked = self._state.now_ms, self._asked.get(consumer)
        if asked is not None and now_ms < asked.until_ms:
            return False
        doubled = 0 if asked is None else min(asked.doubled + (asked.n != consumer.n), DOUBLED_MAX)
        pause_ms = (BEATS * self._state.options.heartbeat_ms) << doubled
        self._asked[consumer] = _Asked(consumer.n, doubled, now_ms + pause_ms)
        return True

    def _count_lost(self, consumer: Consumer, beat: Heartbeat, before_ms: int) -> int:
        """How many messages it should have and does not, of those that were handed over before then."""
        due = []
        for seq, message in consumer.in_flight.items():  # in the order in which they were handed over
            if message.dispatched_at_ms >= before_ms:
                break
            due.append(seq)
        if beat.in_hand is None:  # it says only how many it has, newer ones included
            return max(0, len(due) - beat.held)
        ranges = deque(sorted(beat.in_hand))
        lost = 0
        for seq in sorted(due):
            while ranges and ranges[0][1] < seq:
                ranges.popleft()
            lost += not ranges or seq < ranges[0][0]
        return lost
