"""The blocking consumer, on pika."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from types import FrameType, TracebackType
from typing import Self

from dispatcher.client.copies import BlockingMessage
from dispatcher.client.engine import ConsumerEngine
from dispatcher.client.handler_kinds import check_blocking
from dispatcher.client.identity import STOP_SIGNALS, ConsumerBase
from dispatcher.client.io_thread import IoThread
from dispatcher.client.links import CLOSE_TIMEOUT_S
from dispatcher.client.pika_link import PikaLink
from dispatcher.client.retries import RetryChoice
from dispatcher.client.shards import ShardsEngine
from dispatcher.client.thread_runner import BlockingHandler, ThreadRunner, wait_until_told


class _BlockingInbox:
    """The engine's listener. It is called in the I/O thread, `take` and `until` in any other."""

    def __init__(self) -> None:
        self.over: Future[None] = Future()
        self.runner: ThreadRunner | None = None
        self._waiting: queue.SimpleQueue[BlockingMessage | None] = queue.SimpleQueue()
        self._conditions: list[tuple[Callable[[], bool], Future[None]]] = []

    def take(self) -> BlockingMessage | None:
        """Wait for a message that is still ours; None: the consumer has ended."""
        while (message := self._waiting.get()) is not None:
            if not message.lost:
                return message
        self._waiting.put(None)  # for the next caller
        return None

    def take_waiting(self) -> list[BlockingMessage]:
        """The messages that wait now, without waiting for more."""
        taken = []
        with contextlib.suppress(queue.Empty):
            while (message := self._waiting.get_nowait()) is not None:
                taken.append(message)
            self._waiting.put(None)
        return [message for message in taken if not message.lost]

    def watch(self, condition: Callable[[], bool], reached: Future[None]) -> None:
        """Set `reached` when `condition` holds; called in the I/O thread."""
        self._conditions.append((condition, reached))
        self.changed()

    def received(self, messages: list[BlockingMessage]) -> None:
        if self.runner is not None:
            self.runner.add(messages)
        else:
            for message in messages:
                self._waiting.put(message)

    def lost(self, messages: list[BlockingMessage]) -> None:
        if self.runner is not None:
            self.runner.drop_lost(messages)

    def changed(self) -> None:
        if not self._conditions:
            return
        pending = []
        for condition, reached in self._conditions:
            if condition():
                reached.set_result(None)
            else:
                pending.append((condition, reached))
        self._conditions = pending

    def ended(self, error: Exception | None) -> None:
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)
        self._waiting.put(None)


def _settle(
    io: IoThread, engine: ConsumerEngine[BlockingMessage], message: BlockingMessage, reason: str | None,
    attempts: int,
) -> bool:  # fmt: skip
    io.submit(lambda: engine.settle(message, reason, attempts))
    return True


class BlockingGroupConsumer(ConsumerBase):
    """`GroupConsumer` for threads; see there for the promises.

        with BlockingGroupConsumer(url, "orders", "worker-1") as consumer:
            for message in consumer:
                ...
                message.ack()

    or `BlockingGroupConsumer(url, "orders", "worker-1").run(handler)`.

    All I/O happens in a thread of its own, so that neither a slow loop nor a frozen handler stops heartbeats.
    A thread can't be cancelled: a handler that runs for long should look at `message.lost`.
    """

    def _set_up(self) -> None:
        self._inbox = _BlockingInbox()
        self._io: IoThread | None = None
        self._engine: ConsumerEngine[BlockingMessage] | ShardsEngine[BlockingMessage] | None = None

    # --- life -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin to connect and join; `with` and `run` do it. Returns at once, see `joined`."""
        if self._io is None:
            endpoint = self._identity.endpoint
            io = self._io = IoThread(f"dispatcher {endpoint.connection_name}", self._crashed)
            self._engine = self._identity.engine(
                BlockingMessage,
                lambda engine: partial(_settle, io, engine),
                io,
                self._inbox,
                lambda receiver: PikaLink(endpoint, receiver, io),
            )
            self._engine.wake_through(io.submit)
            self._inbox.over.add_done_callback(lambda _: io.end())
            io.start()
            io.submit(self._engine.start)

    def joined(self, timeout_s: float | None = None) -> None:
        """Wait until the dispatcher has welcomed this consumer. Raises TimeoutError."""
        _, engine = self._opened()
        self._until(lambda: engine.joined, timeout_s)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every settle so far counts, see `GroupConsumer.flush`. Raises TimeoutError, and
        SettlesInDoubt if some may not count."""
        (_, engine), told_before = self._opened(), self._doubts_told
        self._until(engine.flushed, timeout_s)
        self._tell_doubts(told_before, engine.doubts)

    def stop(self) -> None:
        """Leave: nothing new comes, and iteration or `run` ends when everything in hand is settled."""
        io, engine = self._opened()
        io.submit(engine.leave)

    def close(self) -> None:
        """Leave at once. Settles are still confirmed; the messages in hand go to others."""
        if self._io is None or self._engine is None:
            return
        if not self._inbox.over.done():
            self._io.submit(self._engine.abandon)
            with contextlib.suppress(
                Exception
            ):  # an error of its end is the business of who iterates or runs
                self._inbox.over.result(CLOSE_TIMEOUT_S)
        if not self._inbox.over.done():
            self._io.submit(self._engine.end)
        self._io.join(2 * CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- messages -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[BlockingMessage]:
        return self

    def __next__(self) -> BlockingMessage:
        self._opened()
        message = self._inbox.take()
        if message is None:
            self._inbox.over.result()
            raise StopIteration
        message.begin()
        if message.is_at_risk:
            wait_until_told(message)
        return message

    def run(
        self,
        handler: BlockingHandler,
        *,
        concurrency: int = 10,
        attempts: int | None = None,
        backoff_ms: int | None = None,
        stop_on_signals: bool = True,
    ) -> None:
        """Call `handler(message)` in `concurrency` threads for every message until `stop`, SIGTERM or SIGINT.

        Order, retries, RetryLater, RejectMessage and signals are those of `GroupConsumer.run`.

        Raises TypeError for an `async def` function, before anything is consumed, and for a handler whose
        result must be awaited, when it has returned one: that message is not settled.
        """
        check_blocking(handler)
        choice = RetryChoice(attempts, backoff_ms)
        runner = ThreadRunner(
            handler, concurrency, lambda: choice.over(self._opened()[1].retry), self._broken_handler
        )
        with self._stopping_on_signals() if stop_on_signals else contextlib.nullcontext():
            self.open()
            io, engine = self._opened()
            io.submit(lambda: engine.limit(concurrency))
            io.submit(lambda: self._give_to(runner))
            runner.start()
            try:
                self._inbox.over.result()
            finally:
                runner.stop()
                self.close()

    def _broken_handler(self, error: Exception) -> None:
        io, engine = self._opened()
        io.submit(lambda: engine.end(error))

    def _give_to(self, runner: ThreadRunner) -> None:
        self._inbox.runner = runner
        runner.add(self._inbox.take_waiting())

    def _until(self, condition: Callable[[], bool], timeout_s: float | None) -> None:
        io, _ = self._opened()
        reached: Future[None] = Future()
        io.submit(lambda: self._inbox.watch(condition, reached))
        done, _ = wait((reached, self._inbox.over), timeout_s, FIRST_COMPLETED)
        if not done:
            raise TimeoutError(f"not within {timeout_s} s")
        if self._inbox.over.done():
            self._inbox.over.result()

    def _opened(self) -> tuple[IoThread, ConsumerEngine[BlockingMessage] | ShardsEngine[BlockingMessage]]:
        if self._io is None or self._engine is None:
            raise RuntimeError("the consumer is not open: use `with`, or call its open()")
        return self._io, self._engine

    def _crashed(self, error: Exception) -> None:
        if not self._inbox.over.done():
            self._inbox.ended(error)

    @contextlib.contextmanager
    def _stopping_on_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = {number: signal.signal(number, self._signalled) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        io, engine = self._opened()
        io.submit(engine.leave if self._signals == 1 else engine.end)
