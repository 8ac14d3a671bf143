"""Calls asynchronous handlers: a few tasks, each taking one message after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from dispatcher.client.begun import TOLD_WITHIN_S
from dispatcher.client.copies import Message
from dispatcher.client.handling import Handling
from dispatcher.client.retries import RetryPolicyNow

Handler = Callable[[Message], Awaitable[object]]
#: Handlers that never wait would keep the loop from heartbeats and settles: it gets its turn this often.
SLICE_MS: Final = 5


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


async def until_told(message: Message) -> None:
    """Wait until the dispatcher surely hears that this message has begun; not for long."""
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    message.when_told(lambda: None if told.done() else told.set_result(None))
    await asyncio.wait((told,), timeout=TOLD_WITHIN_S)


class Runner:
    """At most `concurrency` handlers at a time; a pause before a retry takes no place."""

    def __init__(self, handler: Handler, concurrency: int, policy: RetryPolicyNow) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, but is {concurrency}")
        self._handler = handler
        self._concurrency = concurrency
        self._handling: Handling[Message] = Handling(policy)
        self._workers: set[asyncio.Task[None]] = set()
        self._current: dict[Message, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        #: Gets the exception that ended a worker: an error of ours, never one of a handler.
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, messages: Iterable[Message]) -> None:
        self._handling.add(messages)
        self._fill()

    def drop_lost(self, messages: Iterable[Message]) -> None:
        """Cancel the handlers of these messages; those that wait are never begun."""
        messages = list(messages)
        for message in messages:
            if task := self._current.get(message):
                task.cancel()
        self._handling.drop_lost(messages)
        self._fill()

    async def idle(self) -> None:
        """Wait until nothing waits or runs."""
        await self._idle.wait()

    async def cancel(self) -> None:
        """Stop every handler; their messages are not settled."""
        if self._timer is not None:
            self._timer.cancel()
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    def _fill(self) -> None:
        """Start workers for messages that are ready, and see to it that this is called again in time."""
        free = self._concurrency - len(self._workers)
        for _ in range(min(self._handling.ready_count(monotonic_ms()), free)):
            worker = asyncio.get_running_loop().create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._worker_done)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (deadline_ms := self._handling.next_deadline_ms()) is not None:
            delay_s = max(0, deadline_ms - monotonic_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._fill)
        if self._handling:
            self._idle.clear()
        else:
            self._idle.set()

    def _worker_done(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if worker.cancelled():
            return
        if (error := worker.exception()) is not None and not self.failed.done():
            self.failed.set_exception(error)
        self._fill()

    async def _work(self) -> None:
        slice_ends_ms = monotonic_ms() + SLICE_MS
        while (message := self._handling.begin(now_ms := monotonic_ms())) is not None:
            await self._handle(message)
            if now_ms >= slice_ends_ms:
                await asyncio.sleep(0)
                slice_ends_ms = monotonic_ms() + SLICE_MS

    async def _handle(self, message: Message) -> None:
        worker = asyncio.current_task()
        assert worker is not None
        self._current[message] = worker
        error: BaseException | None = None
        try:
            if message.is_at_risk:
                await until_told(message)
            await self._handler(message)
        except asyncio.CancelledError as cancelled:
            if worker.cancelling() > message.lost:
                # Not (only) because the message was lost: the consumer stops.
                del self._current[message]
                self._handling.discard(message)
                raise
            error = cancelled  # of the handler's own making, or because the message was lost
        except Exception as raised:
            error = raised
        del self._current[message]
        if message.lost and worker.cancelling():
            worker.uncancel()
        self._handling.end(message, error, monotonic_ms())
