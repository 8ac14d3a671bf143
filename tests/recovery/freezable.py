"""A dispatcher that stands still in the middle of its leadership, and wakes up doing what a test says.

It runs in a thread with an event loop of its own. Frozen, that thread is blocked: its sockets stay open, the
kernel answers for it, and nothing of it runs, as after SIGSTOP. What it does before it can notice anything
is the test's to choose, which a signal doesn't allow.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from dispatcher.service.lane_runner import LaneRunner, RunnerState
from dispatcher.settings import Settings
from tests.waiting import POLL_S, TIMEOUT_S, wait_until


class FreezableDispatcher:
    """One lane's runner in a thread. Other threads may only read its state."""

    def __init__(self, settings: Settings) -> None:
        (lane,) = settings.lanes.values()
        self._make_runner = lambda: LaneRunner(settings, lane)
        self.runner: LaneRunner | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="freezable")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._still = threading.Event()
        self._go_on = threading.Event()
        self._first_act: Callable[[LaneRunner], None] = lambda _: None

    def start(self) -> None:
        self._thread.start()
        wait_until(lambda: self.runner is not None, what="the thread to run")

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.runner = self._make_runner()
        await self.runner.prepare()
        self._task = self._loop.create_task(self.runner.run())
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    @property
    def state(self) -> RunnerState:
        assert self.runner is not None
        return self.runner.state

    def freeze(self) -> None:
        """Returns when nothing of it runs any more; Redis has answered all that it asked."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stand_still)
        assert self._still.wait(TIMEOUT_S)

    def _stand_still(self) -> None:
        assert self.runner is not None
        assert self._loop is not None
        session = self.runner._session
        if session is not None and session._store.pending:
            self._loop.call_later(POLL_S, self._stand_still)
            return
        self._still.set()
        self._go_on.wait()
        self._first_act(self.runner)

    def wake(self, first_act: Callable[[LaneRunner], None]) -> None:
        """Let it go on; `first_act` runs in its thread before it reads, writes or looks at a clock."""
        self._first_act = first_act
        self._go_on.set()

    def call(self, function: Callable[[], Any]) -> Any:
        """Have this done in its thread; the result."""
        assert self._loop is not None

        async def do() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(10)

    def close(self) -> None:
        self._go_on.set()
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)


@contextlib.contextmanager
def freezable(settings: Settings) -> Iterator[FreezableDispatcher]:
    dispatcher = FreezableDispatcher(settings)
    dispatcher.start()
    try:
        yield dispatcher
    finally:
        dispatcher.close()
