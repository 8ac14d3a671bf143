"""Deadlines of messages that wait: in flight only the consumer may fail one."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from dispatcher.core.model import MessageState, Original

#: So many deadlines are there before those of messages that no longer wait are thrown out.
DEADLINES_MIN: Final = 1_000


class Deadlines:
    """The deadlines of one lane, earliest first."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Original]] = []  # (deadline, tie breaker, message)
        self._pushed = 0
        self._entries_max = DEADLINES_MIN

    def watch(self, message: Original) -> None:
        """Remember its deadline, if it has one. Nothing is lost by doing so twice."""
        if message.deadline_at_ms is None:
            return
        heap = self.heap
        if len(heap) >= self._entries_max:  # mostly of messages that went out long before their deadline
            heap[:] = [entry for entry in heap if _waits(entry[2])]
            heapq.heapify(heap)
            self._entries_max = max(DEADLINES_MIN, 2 * len(heap))
        self._pushed += 1
        heapq.heappush(heap, (message.deadline_at_ms, self._pushed, message))

    def due(self, now_ms: int) -> Iterator[Original]:
        """Messages that still wait and whose deadline has passed, each once."""
        heap = self.heap
        while heap and heap[0][0] <= now_ms:
            message = heapq.heappop(heap)[2]
            if _waits(message):
                yield message

    def next_ms(self) -> int | None:
        """The earliest deadline of a message that waits."""
        heap = self.heap
        while heap and not _waits(heap[0][2]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None


def _waits(message: Original) -> bool:
    """It waits here, and not in the queue that it was given back to."""
    return message.state is MessageState.WAITING and message.is_here
