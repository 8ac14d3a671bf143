"""Inbound acks, coalesced: one `multiple` ack up to the lowest unsettled delivery per wake-up.

A single ack makes RabbitMQ walk, in the channel and in the queue, over the unacked deliveries before it:
some 30 microseconds with none of them, 250 with a thousand, more than a millisecond with five thousand. Its
queue delivers nothing meanwhile. So a settled delivery behind unsettled ones first waits for these.
Deliveries that have waited for long are acked singly, the lowest first, as a token bucket allows: the tokens
are the time that RabbitMQ spends on such acks. They come at a fiftieth of real time, and at a tenth when many
acks wait. When a consumer has
free capacity and a full prefetch keeps messages back from it they come faster, and the consumer may be
replaced by one whose prefetch is free (`InboundFeed`).
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final, NamedTuple

#: Under load a message is in flight for 50 to 200 ms: after that the one in front is stuck, not just slow.
SINGLE_ACK_DELAY_MS: Final = 250
#: What a single ack costs RabbitMQ, and what each unacked delivery before it adds (3.10, a classic queue).
SINGLE_ACK_US: Final = 25
BEFORE_US: Final = 0.25
#: How much of its time RabbitMQ may spend on single acks, in percent: while few wait, and when many do. Acks
#: that wait cost memory, and their messages come again after a crash.
SPARING_PERCENT: Final = 2
BUDGET_PERCENT: Final = 10
#: The same while a full prefetch keeps messages back from a consumer with free capacity: the queue has little
#: else to do.
AWAITED_BUDGET_PERCENT: Final = 75
#: Single acks go in portions that cost no more than this, so that deliveries come between.
PORTION_US: Final = 10_000
#: The prefetch is nearly used up when RabbitMQ may send less than this part of it more.
ROOM_PART: Final = 10
#: Then a consumer with nothing to do waits for no longer than this for each message of the prefetch. By
#: default that is as long as a message is in flight under load; and a lane of which a part x is stuck in
#: front still gets (1 - x) times 40,000 messages a second, however small its look-ahead.
AWAITED_ACK_DELAY_US: Final = 25
#: How many settles may wait for the proof of an earlier one; beyond that it is acked at any price.
UNPROVEN_MAX: Final = 40_000
#: More waiting acks than this are many.
MANY: Final = UNPROVEN_MAX // 2
#: The lowest unsettled delivery is sought so far behind the former one.
SOUGHT: Final = 1_000


class Ack(NamedTuple):
    """One basic.ack for a delivery tag of the window's channel."""

    tag: int
    multiple: bool


class AckWindow:
    """The deliveries of one channel that are not acked; tags count up from 1.

    The latest consumer of the channel may have `prefetch` of them; what it does not have is of former ones.
    """

    def __init__(self, *, prefetch: int) -> None:
        self._delivered = 0
        self._unsettled: dict[int, None] = {}  # in order: bounded by the look-ahead
        self._lowest = 1  # all before it are settled or given back
        self._fresh: list[int] = []  # settled since the last `take`
        self._waiting: dict[int, int] = {}  # settled behind an unsettled one: tag → since
        # The same tags: those that have not waited for long, by time; and those that have, lowest first. Each
        # with some that are acked since.
        self._young: deque[tuple[int, list[int]]] = deque()
        self._due: list[int] = []
        self._delay_ms = SINGLE_ACK_DELAY_MS
        self._tokens_us = float(PORTION_US)
        self._tokens_at_ms = 0
        self._percent = BUDGET_PERCENT
        self._settled: list[int] = []  # in the order of their settles, until `take_acked`
        self.begin_consumer(prefetch)

    def begin_consumer(self, prefetch: int) -> None:
        """Another consumer of the channel gets the deliveries from here on, at most `prefetch` of them
        unacked."""
        self._former = self.unacked  # not acked, of former consumers
        self._first = self._delivered + 1
        self._nearly_full = prefetch - prefetch // ROOM_PART
        self._awaited_delay_ms = min(SINGLE_ACK_DELAY_MS, -(-prefetch * AWAITED_ACK_DELAY_US // 1_000))

    @property
    def unsettled(self) -> int:
        """Deliveries that are neither settled nor given back."""
        return len(self._unsettled)

    @property
    def unacked(self) -> int:
        """Deliveries that are neither acked nor given back, of all consumers of the channel."""
        return len(self._unsettled) + len(self._waiting) + len(self._fresh)

    @property
    def is_nearly_full(self) -> bool:
        """RabbitMQ may send the latest consumer little more before something is acked."""
        return self.unacked - self._former >= self._nearly_full

    @property
    def waiting(self) -> int:
        """Settled deliveries whose acks wait."""
        return len(self._waiting)

    def waits_since_ms(self) -> int | None:
        """Since when the ack waits that does so for longest."""
        return next(iter(self._waiting.values()), None)

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
        self._former -= tag < self._first

    def take(self, now_ms: int, *, awaited: bool = False, everything: bool = False) -> list[Ack]:
        """The acks to send now, in order. `everything` leaves nothing waiting.

        `awaited`: somebody could work on what RabbitMQ may not send yet.
        """
        if not self._fresh and not self._waiting:
            return []
        awaited = awaited and self.is_nearly_full
        acked, single = self._coverable(now_ms), list[int]()
        last = max(acked, default=0)
        if self._waiting:
            single = sorted(self._waiting) if everything else self._affordable(now_ms, awaited=awaited)
            for tag in single:
                del self._waiting[tag]
        if not self._waiting:
            self._young.clear()
            self._due.clear()
        if self._former:
            first = self._first
            self._former -= sum(tag < first for tag in acked) + sum(tag < first for tag in single)
        acks = [Ack(last, True)] if last else []
        return acks + [Ack(tag, False) for tag in single]

    def _coverable(self, now_ms: int) -> list[int]:
        """What one multiple ack covers; what else is fresh waits from now on. A multiple ack must name a tag
        that is not acked yet."""
        waiting, former, lowest = self._waiting, self._lowest, self._find_lowest()
        covered, late = list[int](), list[int]()
        for tag in self._fresh:
            if tag < lowest:
                covered.append(tag)
            else:
                waiting[tag] = now_ms
                late.append(tag)
        self._fresh.clear()
        if late:
            self._young.append((now_ms, late))
        passed = range(former, lowest) if lowest - former < len(waiting) else list(waiting)
        for tag in passed:
            if tag < lowest and tag in waiting:
                del waiting[tag]
                covered.append(tag)
        return covered

    def _find_lowest(self) -> int:
        """The lowest unsettled delivery, or else the next one.

        The first one of a dict stands behind all that were taken out of it: only a far one is asked for.
        """
        unsettled, lowest = self._unsettled, self._lowest
        if not unsettled:
            lowest = self._delivered + 1
        elif lowest not in unsettled:
            stop = lowest + SOUGHT
            while lowest < stop and lowest not in unsettled:
                lowest += 1
            if lowest == stop:
                lowest = next(iter(unsettled))
        self._lowest = lowest
        return lowest

    def _affordable(self, now_ms: int, *, awaited: bool) -> list[int]:
        """Those of the waiting that are acked singly now, lowest first."""
        self._earn(now_ms)
        usual_percent = BUDGET_PERCENT if len(self._waiting) > MANY else SPARING_PERCENT
        self._percent = AWAITED_BUDGET_PERCENT if awaited else usual_percent
        self._delay_ms = self._awaited_delay_ms if awaited else SINGLE_ACK_DELAY_MS
        waiting, young, due = self._waiting, self._young, self._due
        while young and young[0][0] <= now_ms - self._delay_ms:
            for tag in young.popleft()[1]:
                if tag in waiting:
                    heapq.heappush(due, tag)
        chosen = list[int]()
        if len(self._settled) > UNPROVEN_MAX and self._settled[0] in waiting:
            chosen.append(self._settled[0])
        if self._tokens_us > 0:
            chosen = sorted({*chosen, *self._paid_for(due)})
        return chosen

    def _earn(self, now_ms: int) -> None:
        earned_us = (now_ms - self._tokens_at_ms) * 10 * self._percent
        self._tokens_us = min(PORTION_US, self._tokens_us + earned_us)
        self._tokens_at_ms = now_ms

    def _paid_for(self, due: list[int]) -> list[int]:
        """The lowest that are due, until the tokens are used up; the last one may cost more than is left.

        All that waits before such a one is acked earlier, or has not waited for long: only the unsettled are
        counted.
        """
        waiting, before = self._waiting, -1
        unsettled, stop = iter(self._unsettled), 0  # the first one is asked for when something is due
        chosen = list[int]()
        while due and self._tokens_us > 0:
            tag = heapq.heappop(due)
            if tag not in waiting:
                continue
            while stop < tag:
                before += 1
                stop = next(unsettled, self._delivered + 1)
            self._tokens_us -= SINGLE_ACK_US + before * BEFORE_US
            chosen.append(tag)
        return chosen

    def take_acked(self) -> int:
        """How many of the settled ones, in the order of their settles, were acked since the last call.

        One that still waits holds up those that were settled after it.
        """
        count = 0
        if not self._fresh:
            for tag in self._settled:
                if tag in self._waiting:
                    break
                count += 1
            del self._settled[:count]
        return count

    @property
    def unproven(self) -> bool:
        """Whether `take_acked` may have something to count, now or later."""
        return bool(self._settled)

    def deadline_ms(self) -> int | None:
        """When `take` should be called for those that wait."""
        if not self._waiting:
            return None
        if self._due:
            missing_us = max(0.0, -self._tokens_us)
            return self._tokens_at_ms + int(missing_us // (10 * self._percent)) + 1
        return self._young[0][0] + self._delay_ms if self._young else None
