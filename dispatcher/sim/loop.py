"""Virtual time: one heap of events, and for each simulated process an event loop that lives on it.

Nothing here waits and nothing reads a clock, so a run is a function of its seed. Coroutines of the real
service run on a `ProcessLoop` as they do on asyncio's own loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import inspect
from collections import deque
from collections.abc import Callable, Coroutine
from inspect import CORO_CREATED, CORO_SUSPENDED
from random import Random
from typing import Any, cast

#: Where every run begins, in ms since 1970.
BEGINNING_MS = 1_750_000_000_000
#: Of coroutines that are not over, and do not run at this moment.
_NOT_OVER = (CORO_CREATED, CORO_SUSPENDED)


class Handle:
    """A callback that was asked for. Cancelling it is all that can be done with it."""

    __slots__ = ("args", "callback", "process")

    def __init__(self, process: ProcessLoop | None, callback: Callable[..., object], args: Any) -> None:
        self.process = process
        self.callback: Callable[..., object] | None = callback  # None: cancelled
        self.args = args

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None

    def run(self) -> None:
        if self.callback is not None:
            self.callback(*self.args)


class Scheduler:
    """The world's clock and agenda. `random` is the one source of chance."""

    def __init__(self, seed: int) -> None:
        self.now_ms = BEGINNING_MS
        self.random = Random(seed)
        self.failures: list[tuple[str, BaseException]] = []  # what no process handled
        self.steps = 0
        self.on_sent: Callable[[Any], object] | None = None  # told of what a process sends to a server
        self._ready: deque[Handle] = deque()
        self._heap: list[tuple[int, int, Handle]] = []
        self._pushed = 0
        self._entered: ProcessLoop | None = None  # whose loop asyncio takes for the running one

    def soon(self, handle: Handle) -> Handle:
        self._ready.append(handle)
        return handle

    def at(self, when_ms: int, handle: Handle) -> Handle:
        self._pushed += 1
        heapq.heappush(self._heap, (when_ms, self._pushed, handle))
        return handle

    def after(self, delay_ms: int, callback: Callable[..., object], *args: Any) -> Handle:
        """Something outside of all processes happens then."""
        return self.at(self.now_ms + delay_ms, Handle(None, callback, args))

    def run(self, until_ms: int, done: Callable[[], bool]) -> None:
        """Go on until `done` (asked whenever time moves), that time, or an unhandled failure."""
        outer = asyncio._get_running_loop()  # of the program that runs the simulation
        try:
            while not self.failures:
                self._run_ready()
                if not self._heap or self._heap[0][0] > until_ms or done():
                    return
                when_ms = self._heap[0][0]
                self.now_ms = max(self.now_ms, when_ms)
                while self._heap and self._heap[0][0] <= when_ms:
                    self._ready.append(heapq.heappop(self._heap)[2])
        finally:
            self._entered = None
            asyncio._set_running_loop(outer)

    def _run_ready(self) -> None:
        """Run the handles that are due, in their order. The inner loop of every run: it calls nothing
        else."""
        ready, failures = self._ready, self.failures
        while ready and not failures:
            handle = ready.popleft()
            self.steps += 1
            callback = handle.callback
            if callback is None:
                continue
            process = handle.process
            if process is None:
                callback(*handle.args)
            elif process.frozen is not None:
                process.frozen.append(handle)
            elif not process.dead:
                if self._entered is not process:
                    self._entered = process
                    asyncio._set_running_loop(process.loop)
                try:
                    callback(*handle.args)
                except Exception as failure:
                    failures.append((process.name, failure))

    def thaw(self, handles: list[Handle]) -> None:
        """Run the handles that have waited, before all others of this moment."""
        self._ready.extendleft(reversed(handles))


def _close(coroutine: object) -> None:
    """End it where it waits: its task will never go on, for its wake-up would have come after the end. What
    it does on its way out may wait, too: then that ends there. Else all of it would happen whenever Python
    frees the coroutine."""
    while inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) in _NOT_OVER:
        with contextlib.suppress(Exception):  # RuntimeError, if it waits once more
            coroutine.close()


class ProcessLoop:
    """The event loop of one simulated process, with a wall clock that may be wrong.

    It has what tasks, futures and the service call; asyncio takes it for a loop.
    """

    def __init__(self, scheduler: Scheduler, name: str, clock_offset_ms: int = 0) -> None:
        self.scheduler = scheduler
        self.name = name
        self.clock_offset_ms = clock_offset_ms
        self.dead = False
        self.cut_off_until_ms = 0  # no connection to the broker can be made before
        self.frozen: list[Handle] | None = None  # callbacks that wait for SIGCONT
        self._zombie: deque[Handle] | None = None
        self.loop = cast(asyncio.AbstractEventLoop, self)

    # -- life --

    def freeze(self) -> None:
        """SIGSTOP: nothing runs, incoming events wait."""
        if self.frozen is None:
            self.frozen = []

    def thaw(self) -> None:
        """SIGCONT."""
        waiting, self.frozen = self.frozen, None
        if waiting:
            self.scheduler.thaw(waiting)

    def kill(self, tasks: list[asyncio.Task[Any]]) -> None:
        """SIGKILL, once its connections are cut: nothing that its tasks still do reaches other processes."""
        outer = asyncio._get_running_loop()
        self.dead = True
        self._zombie = deque()
        for task in tasks:
            task.cancel()
        for _ in range(10_000):
            if not self._zombie:
                break
            asyncio._set_running_loop(self.loop)
            try:
                self._zombie.popleft().run()
            except Exception:
                continue  # it is dead: no other process hears its last words
        self._zombie = None
        for task in asyncio.all_tasks(self.loop):
            _close(task.get_coro())
        asyncio._set_running_loop(outer)

    def wall_s(self) -> float:
        """The time by its machine's clock, in s since 1970."""
        return (self.scheduler.now_ms + self.clock_offset_ms) / 1000

    # -- what asyncio needs --

    def time(self) -> float:
        return self.scheduler.now_ms / 1000

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        handle = Handle(self, callback, args)
        if self._zombie is not None:
            self._zombie.append(handle)
            return handle
        return self.scheduler.soon(handle)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> Any:
        handle = Handle(self, callback, args)
        if self.dead:
            return handle
        return self.scheduler.at(self.scheduler.now_ms + max(0, round(delay * 1000)), handle)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        return self.call_later(when - self.time(), callback, *args)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.loop)

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self.loop)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        failure = context.get("exception")
        if failure is not None and not self.dead and isinstance(failure, Exception):
            self.scheduler.failures.append((self.name, failure))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False
