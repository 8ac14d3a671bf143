"""One direction of a connection: sent items arrive later, in order, or a prefix of them does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from dispatcher.sim.loop import Handle, ProcessLoop, Scheduler


class Pipe:
    """Items on their way; one batch has the items that were sent in one moment.

    `receiver` runs in `process` (None: a server) with each batch.
    """

    __slots__ = (
        "_batches",
        "_held",
        "_last_at_ms",
        "_opened_at_ms",
        "_receiver",
        "closed",
        "process",
        "scheduler",
        "slow_ms",
    )

    def __init__(
        self, scheduler: Scheduler, process: ProcessLoop | None, receiver: Callable[[list[Any]], None]
    ) -> None:
        self.scheduler = scheduler
        self.process = process
        self._receiver = receiver
        self._batches: deque[list[Any]] = deque()
        self._opened_at_ms = -1
        self._last_at_ms = 0
        self.closed = False
        self.slow_ms = 0
        self._held: list[Any] | None = None  # while its sender stands still

    def send(self, item: Any) -> None:
        """Nothing happens on a closed pipe."""
        if self.closed:
            return
        if self._held is not None:
            self._held.append(item)
            return
        scheduler = self.scheduler
        if scheduler.on_sent is not None and self.process is None:
            scheduler.on_sent(item)
        if self._opened_at_ms == scheduler.now_ms and self._batches:
            self._batches[-1].append(item)
            return
        self._opened_at_ms = scheduler.now_ms
        batch = [item]
        self._batches.append(batch)
        draw = scheduler.random.random()
        latency_ms = int(draw * 2) if draw < 0.98 else int((draw - 0.98) * 1500)
        at_ms = scheduler.now_ms + latency_ms + self.slow_ms
        if at_ms < self._last_at_ms:
            at_ms = self._last_at_ms
        self._last_at_ms = at_ms
        scheduler.at(at_ms, Handle(self.process, self._arrive, (batch,)))

    def hold(self) -> None:
        """Its sender stands still: what it would send waits."""
        self._held = []

    def go_on(self) -> None:
        held, self._held = self._held or [], None
        for item in held:
            self.send(item)

    def _arrive(self, batch: list[Any]) -> None:
        arrived = self._batches.popleft()
        assert arrived is batch, "a later batch arrived first"
        self._opened_at_ms = -1 if not self._batches else self._opened_at_ms
        self._receiver(batch)

    def cut(self, then: Callable[[], None] | None = None, *, everything_lost: bool = False) -> None:
        """The connection breaks: a prefix of the items on their way still arrives, then `then` happens."""
        if self.closed:
            return
        self.closed = True
        count = sum(len(batch) for batch in self._batches)
        keep = 0 if everything_lost else self.scheduler.random.randint(0, count)
        for batch in self._batches:
            del batch[keep:]
            keep -= len(batch)
        if then is not None:
            at_ms = max(self._last_at_ms, self.scheduler.now_ms) + 1
            self.scheduler.at(at_ms, Handle(self.process, then, ()))
