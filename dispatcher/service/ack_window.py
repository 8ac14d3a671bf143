"""Inbound acks, coalesced: one `multiple` ack up to the lowest unsettled delivery per wake-up.

A single ack makes RabbitMQ walk, twice, over every unacked delivery before it: 0.2 ms with some hundreds of
them, three times what relaying a message costs, and its queue delivers nothing meanwhile. So what is settled
behind unsettled deliveries waits for these, unless few are before it, it has waited for long, the window
is nearly full of such, or it is nearly full and somebody with free capacity awaits what is behind it. And
what has waited long enough goes a few at a time: a delivery stands behind all acks that were sent before it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from itertools import islice
from typing import Final, NamedTuple

#: Under load a message is in flight for 50 to 200 ms: after that the one in front is stuck, not just slow.
SINGLE_ACK_DELAY_MS: Final = 250
#: With no more unsettled deliveries than this before it a single ack costs the broker some 20 microseconds.
#: One consumer of the default prefetch that stands still is no more than that.
FEW_BEFORE: Final = 50
#: So that the queue's length on the broker is never wrong for long.
SINGLE_ACK_DELAY_MS_MAX: Final = 2_000
#: The prefetch is nearly used up when RabbitMQ may send less than this part of it more.
ROOM_PART: Final = 10
#: Then a consumer with nothing to do waits for no longer than this for each message of the prefetch. By
#: default that is as long as a message is in flight under load; and a lane of which a part x is stuck in
#: front still gets (1 - x) times 40,000 messages a second, however small its look-ahead.
AWAITED_ACK_DELAY_US: Final = 25
#: What is awaited may cost half a millisecond. More would not help: the queue would deliver nothing
#: meanwhile.
AWAITED_BEFORE: Final = 1_000
#: What is due at one look is spread over this long, in slices so far apart. In one piece hundreds of single
#: acks (a backlog was parked, or settles behind a stuck prefetch) kept the queue from delivering for up to a
#: second.
SPREAD_MS: Final = 500
SLICE_MS: Final = 5
#: So many in one slice delay nothing much.
SLICE_MIN: Final = 4


class Ack(NamedTuple):
    """One basic.ack for a delivery tag of the window's channel."""

    tag: int
    multiple: bool


class AckWindow:
    """The deliveries of one channel that are not acked, at most `prefetch`; tags count up from 1."""

    def __init__(self, *, prefetch: int) -> None:
        self._delivered = 0
        self._unsettled: OrderedDict[int, None] = OrderedDict()  # in order: bounded by the look-ahead
        self._fresh: list[int] = []  # settled since the last `take`
        self._waiting: dict[int, int] = {}  # settled behind an unsettled one: tag → since when
        self._waiting_heap: list[int] = []  # the same tags, lowest first, and some that are acked since
        self.resize(prefetch)
        self._look_at_ms: int | None = None  # when to look for single acks again
        self._front, self._front_since_ms = 0, 0  # the lowest unsettled one
        self._due_now: deque[int] = deque()  # as the latest look found, lowest first; some are acked since
        self._slice = SLICE_MIN
        self._slice_at_ms = 0
        self._settled: deque[int] = deque()  # in the order of their settles, until `take_acked`

    def resize(self, prefetch: int) -> None:
        """This many may be unacked, beside those that a former consumer of the channel left."""
        self._nearly_full = prefetch - prefetch // ROOM_PART  # more that wait than this: ack at once
        self._awaited_delay_ms = -(-prefetch * AWAITED_ACK_DELAY_US // 1_000)

    def deliver(self, count: int) -> None:
        """This many more deliveries arrived."""
        first = self._delivered + 1
        self._delivered += count
        self._unsettled.update(dict.fromkeys(range(first, first + count)))

    def settle(self, tag: int) -> None:
        """This delivery may be acked."""
        del self._unsettled[tag]
        self._fresh.append(tag)
        self._settled.append(tag)

    def give_back(self, tag: int) -> None:
        """This delivery goes back to its queue: nothing is to be acked."""
        del self._unsettled[tag]

    def take(self, now_ms: int, *, awaited: bool = False, everything: bool = False) -> list[Ack]:
        """The acks to send now, in order. `everything` leaves nothing waiting.

        `awaited`: somebody could work on what RabbitMQ may not send yet.
        """
        if not self._fresh and not self._waiting:
            return []
        lowest = next(iter(self._unsettled), self._delivered + 1)
        if lowest != self._front:
            self._front, self._front_since_ms = lowest, now_ms
        waiting, heap = self._waiting, self._waiting_heap
        last = 0
        for tag in self._fresh:
            if tag < lowest:
                last = max(last, tag)
            else:
                waiting[tag] = now_ms
                heapq.heappush(heap, tag)
        self._fresh.clear()
        while heap and heap[0] < lowest:
            tag = heapq.heappop(heap)
            if waiting.pop(tag, None) is not None:  # a multiple ack must name a tag that is not acked yet
                last = max(last, tag)
        acks = [Ack(last, True)] if last else []
        if waiting:
            acks += self._singly(list(waiting) if everything else self._to_be_acked(now_ms, awaited=awaited))
        if not waiting:
            self._look_at_ms = None
            self._due_now.clear()
        return acks

    def _to_be_acked(self, now_ms: int, *, awaited: bool) -> list[int]:
        """Those of the waiting that are acked singly now."""
        if len(self._waiting) > self._nearly_full:
            return list(self._waiting)
        if awaited and len(self._unsettled) + len(self._waiting) >= self._nearly_full:
            self._due_now.clear()  # what is left of it is found again
            return self._look(now_ms, self._awaited_delay_ms, AWAITED_BEFORE)
        return self._next_slice(now_ms)

    def _look(self, now_ms: int, delay_ms: int, before: int) -> list[int]:
        """What is due, if it is time to look for that; and say when to look again."""
        look_at_ms = now_ms + delay_ms if self._look_at_ms is None else self._look_at_ms
        due: list[int] = []
        if look_at_ms <= now_ms:
            due = self._due(now_ms, delay_ms, before)
            look_at_ms = now_ms + delay_ms
        self._look_at_ms = min(look_at_ms, now_ms + delay_ms)
        return due

    def _next_slice(self, now_ms: int) -> list[int]:
        """The next few of what is due."""
        due = self._look(now_ms, SINGLE_ACK_DELAY_MS, FEW_BEFORE)
        if due:
            self._due_now = deque(sorted(due))
            self._slice = max(SLICE_MIN, -(-len(due) * SLICE_MS // SPREAD_MS))
        if not self._due_now or now_ms < self._slice_at_ms:
            return []
        self._slice_at_ms = now_ms + SLICE_MS
        taken: list[int] = []
        while self._due_now and len(taken) < self._slice:
            tag = self._due_now.popleft()
            if tag in self._waiting:
                taken.append(tag)
        return taken

    def _due(self, now_ms: int, delay_ms: int, before: int) -> list[int]:
        """Those that have waited this long with at most so many before them, or too long. Behind a stuck one
        there is nothing to wait for."""
        if now_ms - self._front_since_ms >= SINGLE_ACK_DELAY_MS_MAX:
            before = AWAITED_BEFORE
        cheap = next(islice(self._unsettled, before, None), self._delivered + 1)
        soon_ms, late_ms = now_ms - delay_ms, now_ms - SINGLE_ACK_DELAY_MS_MAX
        return [
            tag
            for tag, since_ms in self._waiting.items()
            if since_ms <= late_ms or (tag < cheap and since_ms <= soon_ms)
        ]

    def _singly(self, tags: list[int]) -> list[Ack]:
        for tag in tags:
            del self._waiting[tag]
        if not self._waiting:
            self._waiting_heap.clear()
        return [Ack(tag, False) for tag in sorted(tags)]

    def take_acked(self) -> int:
        """How many of the settled ones, in the order of their settles, were acked since the last call.

        One that still waits holds up those that were settled after it.
        """
        settled, waiting = self._settled, self._waiting
        count = 0
        while settled and settled[0] not in waiting and not self._fresh:
            settled.popleft()
            count += 1
        return count

    @property
    def unproven(self) -> bool:
        """Whether `take_acked` may have something to count, now or later."""
        return bool(self._settled)

    def deadline_ms(self) -> int | None:
        """When `take` should be called for those that wait."""
        if self._look_at_ms is None or not self._due_now:
            return self._look_at_ms
        return min(self._look_at_ms, self._slice_at_ms)
