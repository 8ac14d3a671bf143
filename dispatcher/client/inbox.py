"""Where the messages of an asynchronous consumer wait for the application."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from dispatcher.client.copies import Message
from dispatcher.client.runner import Runner


class Inbox:
    """The engine's listener: keeps messages until they are asked for, or gives them to a runner."""

    def __init__(self) -> None:
        self.over = False
        self._error: Exception | None = None
        self._waiting: deque[Message] = deque()
        self._runner: Runner | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    def take(self) -> Message | None:
        """The next message that is still ours, or None."""
        while self._waiting:
            message = self._waiting.popleft()
            if not message.lost:
                return message
        return None

    def something_waits(self) -> bool:
        return bool(self._waiting)

    def give_to(self, runner: Runner | None) -> None:
        """Messages go to this runner from now on, those that wait already first (None: they wait again)."""
        self._runner = runner
        if runner is not None and self._waiting:
            waiting = list(self._waiting)
            self._waiting.clear()
            runner.add(message for message in waiting if not message.lost)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for `condition`, or for the end; raises the error that ended the consumer."""
        while not (self.over or condition()):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        self.raise_error()

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # --- Listener -------------------------------------------------------------------------------------

    def received(self, messages: list[Message]) -> None:
        if self._runner is not None:
            self._runner.add(messages)
        else:
            self._waiting.extend(messages)

    def lost(self, messages: list[Message]) -> None:
        if self._runner is not None:
            self._runner.drop_lost(messages)

    def changed(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def ended(self, error: Exception | None) -> None:
        self.over, self._error = True, error
        self.changed()
