"""Which message a handler may get next: groups in parallel, one after the other within a group."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from itertools import count
from typing import Generic, TypeVar

from dispatcher.client.copies import Copy

M = TypeVar("M", bound=Copy)


class GroupSchedule(Generic[M]):
    """Messages in hand that wait for a handler. Pure: time is an argument.

    Of those that may run for the first time, the one with the lowest number starts: by that the dispatcher
    knows which of them may have begun since it was last told (docs/protocol.md, begun). Numbers rise, so none
    waits for ever. Messages that run again have low numbers: they take turns with the others, or a few that
    always fail would keep all others from starting.
    A message whose order counts (`group_seq` is not 0) starts only when the one before it in its group has
    left the schedule, also one that was lost while its handler still runs: two handlers of one process
    never work on one group.
    """

    def __init__(self) -> None:
        self._lines: dict[bytes | None, deque[M]] = {}  # by group; only the first may run
        self._ready: list[tuple[int, int, M]] = []  # heap of (number, tie-break, message)
        self._delayed: list[tuple[int, int, M]] = []  # heap of (not before, tie-break, message)
        self._again: deque[M] = deque()  # those of them that are due, in the order in which they became it
        self._again_next = False  # one of these starts next, else one that has not run yet
        self._ties = count()
        self._running: set[M] = set()
        self._size = 0

    def __len__(self) -> int:
        """Messages that wait or run."""
        return self._size

    def ready_count(self, now_ms: int) -> int:
        """Messages that `start_next` could give now, lost ones included."""
        while self._delayed and self._delayed[0][0] <= now_ms:
            self._again.append(heapq.heappop(self._delayed)[2])
        return len(self._ready) + len(self._again)

    def add(self, message: M) -> None:
        """A new message, behind those of its group that are here."""
        self._size += 1
        if message.group_seq:
            line = self._lines.setdefault(message.group, deque())
            line.append(message)
            if len(line) > 1:
                return
        self._make_ready(message)

    def start_next(self, now_ms: int) -> M | None:
        """Take the next message that may run now; `finish` or `retry` it. None: nothing may."""
        while self.ready_count(now_ms):
            message = self._pop()
            if message.lost:
                self._leave(message)
                continue
            self._running.add(message)
            message.begin()
            return message
        return None

    def _pop(self) -> M:
        is_again = bool(self._again) and (self._again_next or not self._ready)
        self._again_next = not is_again
        return self._again.popleft() if is_again else heapq.heappop(self._ready)[2]

    def finish(self, message: M) -> None:
        """A running message has ended; the next of its group may start."""
        self._running.discard(message)
        self._leave(message)

    def retry(self, message: M, at_ms: int) -> None:
        """A running message runs again, not before `at_ms`; its group waits."""
        self._running.discard(message)
        heapq.heappush(self._delayed, (at_ms, next(self._ties), message))

    def drop_lost(self, messages: Iterable[M]) -> None:
        """These are lost: waiting ones leave at once, running ones when they are finished."""
        lost = {message for message in messages if message not in self._running}
        if not lost:
            return
        gone = [message for _, _, message in (*self._ready, *self._delayed) if message in lost]
        gone += [message for message in self._again if message in lost]
        self._again = deque(message for message in self._again if message not in lost)
        for heap in (self._ready, self._delayed):
            heap[:] = [entry for entry in heap if entry[2] not in lost]
            heapq.heapify(heap)
        for message in gone:
            self._leave(message)

    def next_deadline_ms(self) -> int | None:
        """When a delayed message may run."""
        return self._delayed[0][0] if self._delayed else None

    def _make_ready(self, message: M) -> None:
        # Numbers of two incarnations may be equal.
        heapq.heappush(self._ready, (message.seq, next(self._ties), message))

    def _leave(self, message: M) -> None:
        self._size -= 1
        if not message.group_seq:
            return
        line = self._lines[message.group]
        line.popleft()
        while line and line[0].lost:
            line.popleft()
            self._size -= 1
        if line:
            self._make_ready(line[0])
        else:
            del self._lines[message.group]
