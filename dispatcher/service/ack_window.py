"""Inbound acks, coalesced: one `multiple` ack up to the lowest unsettled delivery per wake-up.

A single ack makes RabbitMQ walk, twice, over every unacked delivery before it: 0.2 ms with some hundreds of
them, three times what relaying a message costs, and its queue delivers nothing meanwhile. So what is settled
behind unsettled deliveries waits for these, unless few are before it, it has waited for long, the window
is nearly full of such, or it is nearly full and somebody with free capacity awaits what is behind it.
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
        self._settled: deque[int] = deque()  # in the order of their settles, until `take_acked`

    def resize(self, prefetch: int) -> None:
        """So many may be unacked, beside what a former consumer of the channel left."""
        self._nearly_full = prefetch - prefetch // ROOM_PART  # more that wait than this: ack at once
        self._awaited_delay_ms = -(-prefetch * AWAITED_ACK_DELAY_US // 1_000)

    def deliver(self, count: int) -> None:
        """So many more deliveries arrived."""
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
        if not waiting:
            self._look_at_ms = None
        elif everything or len(waiting) > self._nearly_full:
            acks += self._singly(list(waiting))
        elif awaited and len(self._unsettled) + len(waiting) >= self._nearly_full:
            acks += self._in_time(now_ms, self._awaited_delay_ms, AWAITED_BEFORE)
        else:
            acks += self._in_time(now_ms, SINGLE_ACK_DELAY_MS, FEW_BEFORE)
        return acks

    def _in_time(self, now_ms: int, delay_ms: int, before: int) -> list[Ack]:
        """Look now, if it is time, and say when to look again."""
        look_at_ms = now_ms + delay_ms if self._look_at_ms is None else self._look_at_ms
        acks: list[Ack] = []
        if look_at_ms <= now_ms:
            acks = self._singly(self._due(now_ms, delay_ms, before))
            look_at_ms = now_ms + delay_ms
        self._look_at_ms = min(look_at_ms, now_ms + delay_ms) if self._waiting else None
        return acks

    def _due(self, now_ms: int, delay_ms: int, before: int) -> list[int]:
        """Those that have waited this long with at most so many before them, or too long."""
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
            self._look_at_ms = None
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
        return self._look_at_ms
