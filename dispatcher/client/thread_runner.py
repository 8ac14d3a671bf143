"""Calls blocking handlers in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dispatcher.client.begun import TOLD_WITHIN_S
from dispatcher.client.copies import BlockingMessage
from dispatcher.client.handler_kinds import check_result
from dispatcher.client.handling import Handling
from dispatcher.client.retries import RetryPolicyNow
from dispatcher.client.runner import monotonic_ms

BlockingHandler = Callable[[BlockingMessage], object]


def wait_until_told(message: BlockingMessage) -> None:
    """Wait until the dispatcher surely hears that this message has begun; not for long."""
    told = threading.Event()
    message.when_told(told.set)
    told.wait(TOLD_WITHIN_S)


class ThreadRunner:
    """`concurrency` threads, each calling the handler with one message after the other.

    A thread can't be cancelled: the handler of a lost message runs on, and its group waits for it here.
    """

    def __init__(
        self,
        handler: BlockingHandler,
        concurrency: int,
        policy: RetryPolicyNow,
        broken: Callable[[Exception], None],
    ) -> None:
        """`broken` is called, in a thread of a handler, with the TypeError for a handler that can't work."""
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, but is {concurrency}")
        self._handler = handler
        self._broken = broken
        self._handling: Handling[BlockingMessage] = Handling(policy)
        self._changed = threading.Condition()
        self._stopped = False
        # Daemons: a frozen handler must not keep the process from ending after its last settle.
        self._threads = [
            threading.Thread(target=self._work, name=f"handler-{index}", daemon=True)
            for index in range(concurrency)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def add(self, messages: Iterable[BlockingMessage]) -> None:
        messages = list(messages)
        with self._changed:
            self._handling.add(messages)
            self._changed.notify(len(messages))

    def drop_lost(self, messages: Iterable[BlockingMessage]) -> None:
        """Those that wait are never begun. Their handlers can see `message.lost`."""
        with self._changed:
            self._handling.drop_lost(messages)
            self._changed.notify_all()

    def stop(self) -> None:
        """Begin nothing any more; handlers that run are not waited for."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _work(self) -> None:
        while (message := self._next()) is not None:
            error: BaseException | None = None
            try:
                if message.is_at_risk:
                    wait_until_told(message)
                result = self._handler(message)
            except (
                BaseException
            ) as raised:  # also SystemExit: in a thread it would end nothing but this thread
                error = raised
            else:
                try:
                    check_result(result)
                except TypeError as useless:
                    self._broken(useless)
                    return
            with self._changed:
                self._handling.end(message, error, monotonic_ms())

    def _next(self) -> BlockingMessage | None:
        """Wait for the next message; None: stopped."""
        with self._changed:
            while not self._stopped:
                now_ms = monotonic_ms()
                if (message := self._handling.begin(now_ms)) is not None:
                    return message
                deadline_ms = self._handling.next_deadline_ms()
                self._changed.wait(None if deadline_ms is None else max(0, deadline_ms - now_ms) / 1000)
            return None
