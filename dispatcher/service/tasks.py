"""Work of a session that waits for RabbitMQ, beside its event loop's other turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dispatcher.errors import DispatcherError


class Tasks:
    """Background tasks of a session; `fail` ends it when one of them fails."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> asyncio.Task[None]:
        """Begin it in one of the loop's next turns."""
        task = self._loop.create_task(self._guarded(work, *arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        try:
            await work(*arguments)
        except DispatcherError as failure:
            self._fail(failure)

    def close(self) -> None:
        """The session has ended: wait for nothing more."""
        for task in self._tasks:
            task.cancel()
