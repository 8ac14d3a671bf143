"""The asynchronous consumer, on aio-pika."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self

from dispatcher.client.aio_link import AioLink, AioLoop
from dispatcher.client.copies import Message
from dispatcher.client.engine import ConsumerEngine
from dispatcher.client.handler_kinds import check_asynchronous
from dispatcher.client.identity import STOP_SIGNALS, ConsumerBase
from dispatcher.client.inbox import Inbox
from dispatcher.client.links import CLOSE_TIMEOUT_S
from dispatcher.client.retries import RetryChoice
from dispatcher.client.runner import SLICE_MS, Handler, Runner, monotonic_ms, until_told
from dispatcher.client.shards import ShardsEngine


class GroupConsumer(ConsumerBase):
    """One consumer of a lane.

        async with GroupConsumer(url, "orders", "worker-1") as consumer:
            async for message in consumer:
                ...
                await message.ack()

    or `await GroupConsumer(url, "orders", "worker-1").run(handler)`, which adds concurrency, order, retries
    and a clean stop.

    It connects, joins and, whatever is lost, connects and joins again by itself. The messages in hand are
    worked on over a lost connection: afterwards the dispatcher says whether they are still this consumer's.
    If they are not, or if there was no connection for `offline_limit_ms`, they are cancelled: `message.lost`
    is set, a handler's task is cancelled, and its result no longer counts.

    If it dies, only messages that it had begun may count as what killed it: those whose handler ran, or that
    were taken by iteration. It tells the dispatcher by itself, with its settles; while more than one message
    that it has not told was taken and is not settled, with a word more, at most every 5 ms.

    With `sharded` the lane is one with `shards`: the consumer joins all of them, and whatever this says of a
    lane holds for each. The first one says how many there are, at any time anew.

    `consumer_id` must be unique in the lane: a second consumer of the same id waits until the first is gone.
    Raises ConfigurationError for arguments that can't work. Iteration and `run` raise ConfigurationError when
    RabbitMQ refuses user, vhost or rights at the first attempt, and ConsumerRefused when the dispatcher does;
    anything else is tried again, at least every second, and logged by the logger `dispatcher.client`.
    """

    def _set_up(self) -> None:
        self._inbox = Inbox()
        self._engine: ConsumerEngine[Message] | ShardsEngine[Message] | None = None
        self._slice_ends_ms = 0

    # --- life -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Begin to connect and join; `async with` and `run` do it. Returns at once, see `joined`."""
        if self._engine is None:
            endpoint = self._identity.endpoint
            self._engine = self._identity.engine(
                Message, lambda engine: engine.settle, AioLoop(), self._inbox,
                lambda receiver: AioLink(endpoint, receiver),
            )  # fmt: skip
            self._engine.start()

    async def joined(self) -> None:
        """Wait until the dispatcher has welcomed this consumer."""
        engine = self._opened()
        await self._inbox.until(lambda: engine.joined)

    async def flush(self) -> None:
        """Wait until every settle so far counts: no crash undoes it then.

        A settle counts when RabbitMQ has confirmed it. If the connection is lost before the flush, it counts
        when the dispatcher has also welcomed the consumer over the next connection.

        Raises SettlesInDoubt if the dispatcher took this consumer back meanwhile, because it was cut off or
        evicted, or if the consumer was ended: settles since the last flush that did not raise may not count,
        and others may get these messages again, although they were processed here. The consumer goes on, and
        the next flush is about later settles.

        An eviction at the very moment of a flush can't be seen: its `dispatch.taken` comes a little later.
        """
        engine, told_before = self._opened(), self._doubts_told
        await self._inbox.until(engine.flushed)
        self._tell_doubts(told_before, engine.doubts)

    def stop(self) -> None:
        """Leave: nothing new comes, and iteration or `run` ends when everything in hand is settled."""
        self._opened().leave()

    async def close(self) -> None:
        """Leave at once. Settles are still confirmed; the messages in hand go to others."""
        if self._engine is None or self._inbox.over:
            return
        self._engine.abandon()
        with contextlib.suppress(Exception):  # an error of its end is the business of who iterates or runs
            await asyncio.wait_for(self._ended(), CLOSE_TIMEOUT_S)
        if not self._inbox.over:
            self._engine.end()
            with contextlib.suppress(Exception):
                await self._ended()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- messages -------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        if monotonic_ms() >= self._slice_ends_ms:
            # A loop that never waits would keep heartbeats and settles from being sent.
            await asyncio.sleep(0)
            self._slice_ends_ms = monotonic_ms() + SLICE_MS
        message = self._inbox.take()
        while message is None:
            if self._inbox.over:
                self._inbox.raise_error()
                raise StopAsyncIteration
            self._opened()
            await self._inbox.until(self._inbox.something_waits)
            message = self._inbox.take()
        message.begin()
        if message.is_at_risk:
            await until_told(message)
        return message

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 10,
        attempts: int | None = None,
        backoff_ms: int | None = None,
        stop_on_signals: bool = True,
    ) -> None:
        """Call `await handler(message)` for every message until `stop`, SIGTERM or SIGINT.

        At most `concurrency` handlers run at a time, and never two on one group: within a group messages are
        handled strictly in order. A handler that returns has processed its message, which is acked. One that
        raises is called again after `backoff_ms`, doubled each time, up to a minute; after `attempts` calls
        the message is failed with the exception's text, and the group goes on. Where these are None the
        lane's configuration says (`retry`). RetryLater and RejectMessage say otherwise. A message whose
        deadline has passed is failed as `expired` instead of handled. Handlers must not block the event loop:
        heartbeats would stop, and after seconds RabbitMQ closes the connection. What blocks belongs into a
        BlockingGroupConsumer.

        On the first signal (in the main thread, unless `stop_on_signals` is False) it leaves, finishes what
        is in hand, and returns when that is settled; on the second it stops at once.

        Raises TypeError for a handler that is not an `async def` function, before anything is consumed.
        """
        check_asynchronous(handler)
        choice = RetryChoice(attempts, backoff_ms)
        runner = Runner(handler, concurrency, lambda: choice.over(self._opened().retry))
        with self._stopping_on_signals() if stop_on_signals else contextlib.nullcontext():
            await self.open()
            self._opened().limit(concurrency)
            self._inbox.give_to(runner)
            try:
                await self._until_ended(runner)
            finally:
                await runner.cancel()
                self._inbox.give_to(None)
                await self.close()

    async def _until_ended(self, runner: Runner) -> None:
        ended = asyncio.ensure_future(self._ended())
        try:
            await asyncio.wait({ended, runner.failed}, return_when=asyncio.FIRST_COMPLETED)
            (runner.failed if runner.failed.done() else ended).result()
        finally:
            ended.cancel()

    async def _ended(self) -> None:
        await self._inbox.until(lambda: False)

    def _opened(self) -> ConsumerEngine[Message] | ShardsEngine[Message]:
        if self._engine is None:
            raise RuntimeError("the consumer is not open: use `async with`, or await its open()")
        return self._engine

    @contextlib.contextmanager
    def _stopping_on_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        former = {}
        for number in STOP_SIGNALS:
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread
                former[number] = signal.getsignal(number)
                loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            for number, handler in former.items():
                if loop.remove_signal_handler(number):
                    signal.signal(number, handler)

    def _signalled(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self.stop()
        else:
            self._opened().end()
