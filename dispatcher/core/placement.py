"""Which consumer gets a new group or message: the pool of consumers with free capacity picks it."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator

from dispatcher.core.model import Consumer


class Pool:
    """Consumers that can take something new: `takes_new` is true of them.

    Two orders over the same members. `least_loaded`: lowest level first (what a level counts: groups owned,
    or messages in flight), within a level the one that has been there longest.
    `next_in_turn`: plain rotation. Each operation is O(log levels), whatever the number of consumers.
    """

    def __init__(self, *, counts_messages: bool) -> None:
        self.counts_messages = counts_messages  # then a level changes with each message that goes out
        self.level_of: Callable[[Consumer], int] = self._load  # `optional/measured_cost` puts its own here
        # Ordered dicts: in a plain one, finding the first key walks over all that were taken away before it.
        self._levels: dict[int, OrderedDict[Consumer, None]] = {}
        self._heap: list[int] = []  # every level that has members, and some that had; each once
        self._in_heap: set[int] = set()
        self._turn: OrderedDict[Consumer, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._turn)

    def __len__(self) -> int:
        return len(self._turn)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._turn)

    def add(self, consumer: Consumer) -> None:
        if consumer.pool_level < 0:
            self._turn[consumer] = None
            self._enter(consumer, self.level_of(consumer))

    def discard(self, consumer: Consumer) -> None:
        if consumer.pool_level >= 0:
            del self._turn[consumer]
            self._leave(consumer)

    def given(self, consumer: Consumer) -> None:
        """It was given a group: it goes behind the others in both orders."""
        self.sent_to(consumer)
        self.level_changed(consumer)

    def sent_to(self, consumer: Consumer) -> None:
        """A message went out to it: it goes behind the others. Its level changes only if that counts
        messages."""
        level = consumer.pool_level
        if level >= 0:
            self._turn.move_to_end(consumer)
            self._levels[level].move_to_end(consumer)
            if self.counts_messages:
                self.level_changed(consumer)

    def level_changed(self, consumer: Consumer) -> None:
        """What its level counts may be another number now."""
        if consumer.pool_level >= 0:
            level = self.level_of(consumer)
            if level != consumer.pool_level:
                self._leave(consumer)
                self._enter(consumer, level)

    def least_loaded(self) -> Consumer:
        heap, levels = self._heap, self._levels
        while heap[0] not in levels:
            self._in_heap.discard(heapq.heappop(heap))
        return next(iter(levels[heap[0]]))

    def next_in_turn(self) -> Consumer:
        return next(iter(self._turn))

    def _enter(self, consumer: Consumer, level: int) -> None:
        consumer.pool_level = level
        members = self._levels.get(level)
        if members is None:
            members = self._levels[level] = OrderedDict()
            if level not in self._in_heap:
                self._in_heap.add(level)
                heapq.heappush(self._heap, level)
        members[consumer] = None

    def _leave(self, consumer: Consumer) -> None:
        members = self._levels[consumer.pool_level]
        del members[consumer]
        if not members:
            del self._levels[consumer.pool_level]
        consumer.pool_level = -1

    def _load(self, consumer: Consumer) -> int:
        return consumer.prefetch - consumer.credit if self.counts_messages else len(consumer.groups)
