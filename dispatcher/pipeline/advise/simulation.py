"""A lane on virtual time: the real core decides, consumers work on what they get.

Discrete events: an arrival, a copy that reaches its consumer, the end of the work on it, and its settle. A
copy reaches its consumer when its decision is committed and its way has ended, waits there for its turn, and
takes its demand divided by the consumer's speed; the settle takes the way back. A message's demand is the
same in every scenario (common random numbers), so that scenarios differ by what the options do.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import AcksProven, CopiesConfirmed, Event, MessagesArrived, RedeliveriesEnded
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.options import LaneOptions
from dispatcher.core.orders import AckInbound
from dispatcher.core.queue_ids import inbound_id
from dispatcher.core.records import Dispatched
from dispatcher.pipeline.advise.consumers import SimulatedConsumer
from dispatcher.pipeline.advise.traffic import Traffic
from dispatcher.wire.protocol import Join, Settle

#: When a simulation begins, in ms since 1970, and its lane epoch.
_START_MS: Final = 1_800_000_000_000
_LANE_EPOCH: Final = 7
#: How many messages are let in at a time behind a look-ahead full of blocked ones.
_LET_IN: Final = 64
#: Each message is an arrival, a settle, and two events at its consumer; the core's own timers are rare.
_INSTANTS_PER_MESSAGE: Final = 20
#: The content of every message: it is not read.
_CONTENT: Final = object()


class _Point(Enum):
    """The point that a message has reached at its consumer."""

    THERE = 1
    DONE = 2
    SETTLED = 3  # the dispatcher reads it


@dataclass
class Course:
    """What became of each arrival, by its place; instants in µs since the window began."""

    dispatched_us: list[int]
    begun_us: list[int]  # its consumer began with it
    settled_us: list[int]  # its settle was read
    busy_us: int  # of all consumers together
    waiting_max: int  # not handed over, at a time
    is_cut: bool = False  # it took too many steps, and was not simulated to its end

    @property
    def ended_us(self) -> int:
        return max(self.settled_us, default=0)


class Simulation:
    """One scenario."""

    def __init__(self, traffic: Traffic, options: LaneOptions, *, consumers: int, prefetch: int) -> None:
        self._traffic, self._arrivals = traffic, traffic.arrivals
        snapshot = Snapshot(lane_epoch=_LANE_EPOCH, complete=True, broker_restarted=False)
        self._lane = lane = Lane(options, snapshot, _START_MS)
        lane.start(_START_MS)
        inbounds = range(len(options.inbounds))
        lane.step([RedeliveriesEnded(inbound_id(each)) for each in inbounds], _START_MS)
        lane.step(
            [
                Join(consumer=f"c{n}", incarnation=f"u{n}", n=1, queue=f"q{n}", prefetch=prefetch)
                for n in range(consumers)
            ],
            _START_MS,
        )
        self._places = {number: int(c.id[1:]) for number, c in lane.state.by_number.items()}
        self._consumers = [
            SimulatedConsumer(at_a_time=traffic.at_a_time, speed=traffic.speed(n)) for n in range(consumers)
        ]
        self._is_ordered = options.policy.grouped
        self._agenda: list[tuple[int, int, _Point, int, int]] = []  # instant, rank, point, consumer, place
        self._rank = 0
        self._seqs = [0] * len(self._arrivals)
        self._unconfirmed: deque[tuple[int, int]] = deque()  # instant, size
        self._queued: list[deque[int]] = [deque() for _ in inbounds]  # in the broker's queues
        self._acked = [0 for _ in inbounds]
        self._next = 0  # arrival
        self._handed = 0
        count = len(self._arrivals)
        self._course = Course([0] * count, [0] * count, [0] * count, 0, 0)

    def run(self) -> Course:
        """To the last settle, or until it has taken more steps than any lane should."""
        arrivals, now_us = self._arrivals, 0
        instants_left = _INSTANTS_PER_MESSAGE * (len(arrivals) + 1)
        while self._next < len(arrivals) or self._agenda:
            now_us = max(now_us, self._next_instant(now_us))
            self._happen(now_us)
            instants_left -= 1
            if not instants_left:
                self._course.is_cut = True
                break
        return self._course

    def _next_instant(self, now_us: int) -> int:
        """When something is due: an arrival, something at a consumer, or a timer of the core."""
        arrivals, instants = self._arrivals, []
        if self._agenda:
            instants.append(self._agenda[0][0])
        if self._next < len(arrivals):
            instants.append(arrivals[self._next].at_us + self._traffic.delays.decide_us)
        deadline_ms = self._lane.next_deadline_ms()
        if deadline_ms is not None:
            instants.append(max((deadline_ms - _START_MS) * 1_000, now_us + 1))
        return min(instants)

    def _happen(self, now_us: int) -> None:
        """All that is due."""
        events = self._work(now_us)
        arrivals, decide_us = self._arrivals, self._traffic.delays.decide_us
        while self._next < len(arrivals) and arrivals[self._next].at_us + decide_us <= now_us:
            self._queued[arrivals[self._next].inbound].append(self._next)
            self._next += 1
        events += self._deliveries(now_us)
        if not events and self._agenda and self._agenda[0][0] <= now_us:
            return
        self._step([*self._answers(now_us), *events], now_us)
        while more := self._deliveries(now_us):  # a settle has made room, or messages here are blocked
            self._step(more, now_us)
        self._course.waiting_max = max(self._course.waiting_max, self._next - self._handed)

    def _answers(self, now_us: int) -> list[Event]:
        """What the broker has said by now."""
        events: list[Event] = []
        confirmed = size = 0
        while self._unconfirmed and self._unconfirmed[0][0] <= now_us:
            confirmed, size = confirmed + 1, size + self._unconfirmed.popleft()[1]
        if confirmed:
            events.append(CopiesConfirmed(confirmed, size))
        for inbound, count in enumerate(self._acked):
            if count:
                events.append(AcksProven(inbound_id(inbound), count))
                self._acked[inbound] = 0
        return events

    def _work(self, now_us: int) -> list[Event]:
        """What happens at the consumers; returns the settles that are read."""
        settles: list[Event] = []
        while self._agenda and self._agenda[0][0] <= now_us:
            at_us, _, point, consumer, place = heapq.heappop(self._agenda)
            who = self._consumers[consumer]
            group = self._arrivals[place].group if self._is_ordered else None
            if point is _Point.SETTLED:
                seqs = ((self._seqs[place], self._seqs[place]),)
                settles.append(Settle(consumer=f"c{consumer}", incarnation=f"u{consumer}", acked=seqs))
            elif point is _Point.THERE:
                begun = who.there(place, group)
                self._begin(at_us, consumer, [] if begun is None else [begun])
            else:
                self._enter(at_us + self._traffic.delays.way_us, _Point.SETTLED, consumer, place)
                self._begin(at_us, consumer, who.done(group))
        return settles

    def _begin(self, now_us: int, consumer: int, places: list[int]) -> None:
        for place in places:
            work_us = round(self._arrivals[place].demand_us / self._consumers[consumer].speed)
            self._course.begun_us[place] = now_us
            self._course.busy_us += work_us
            self._enter(now_us + work_us, _Point.DONE, consumer, place)

    def _enter(self, at_us: int, point: _Point, consumer: int, place: int) -> None:
        self._rank += 1
        heapq.heappush(self._agenda, (at_us, self._rank, point, consumer, place))
        if point is _Point.SETTLED:
            self._course.settled_us[place] = at_us

    def _deliveries(self, now_us: int) -> list[Event]:
        """The messages that the broker delivers into the look-ahead. When that is full of blocked messages
        while a consumer has free capacity, the dispatcher parks these: so the messages behind them are let
        in."""
        messages: list[Original] = []
        for inbound, queued in zip(self._lane.state.inbounds, self._queued, strict=True):
            room = inbound.window - inbound.unacked
            if room <= 0 and self._lane.state.pool:
                room = _LET_IN
            for _ in range(min(room, len(queued))):
                messages.append(self._message(queued.popleft(), now_us))
        return [MessagesArrived(messages)] if messages else []

    def _message(self, place: int, now_us: int) -> Original:
        arrival, tag = self._arrivals[place], place + 1
        message = Original(
            arrival.inbound, tag, (_LANE_EPOCH, tag), tag.to_bytes(16), arrival.group, _CONTENT,
            arrival.size, _ms(now_us), cost=arrival.cost,
        )  # fmt: skip
        message.kind = arrival.type
        return message

    def _step(self, events: list[Event], now_us: int) -> None:
        effects: Effects = self._lane.step(events, _ms(now_us))
        for action in effects.actions:
            if type(action) is Dispatched:
                self._hand_over(action, now_us)
            elif type(action) is AckInbound:
                for message in action.messages:
                    self._acked[message.inbound] += 1

    def _hand_over(self, copy: Dispatched, now_us: int) -> None:
        """A copy goes its way."""
        delays, place = self._traffic.delays, copy.message.tag - 1
        there_us = now_us + delays.commit_us + delays.way_us
        self._seqs[place], self._course.dispatched_us[place] = copy.seq, now_us
        self._enter(there_us, _Point.THERE, self._places[copy.incarnation], place)
        self._unconfirmed.append((there_us, copy.message.size))
        self._handed += 1


def _ms(now_us: int) -> int:
    return _START_MS + now_us // 1_000
