"""The thread in which a blocking client does its I/O, and nothing else."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from pika.adapters.select_connection import IOLoop

from dispatcher.alarm import Timer
from dispatcher.client.library_logs import mark_as_ours

LOG: Final = logging.getLogger("dispatcher.client")


class _PikaTimer:
    def __init__(self, ioloop: Any, handle: Any) -> None:
        self._ioloop = ioloop
        self._handle = handle

    def cancel(self) -> None:
        self._ioloop.remove_timeout(self._handle)


class IoThread:
    """pika's event loop in a thread of its own. Only `submit` may be called from other threads."""

    def __init__(self, name: str, crashed: Callable[[Exception], None]) -> None:
        """`crashed` is called in the thread, as its last act, if an error of ours or of pika ended it."""
        self.ioloop: Any = IOLoop()
        self._crashed = crashed
        self._calls: deque[Callable[[], object]] = deque()
        self._asked = False
        # A daemon: a program that ends without closing its client must not hang.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, call: Callable[[], object]) -> None:
        """Run `call` in the thread, after all that were submitted before. Many cost one wake-up."""
        self._calls.append(call)
        if not self._asked:
            self._asked = True
            self.ioloop.add_callback_threadsafe(self._run_calls)

    def _run_calls(self) -> None:
        self._asked = False  # first: a thread that appends from now on asks again
        with contextlib.suppress(IndexError):
            while True:
                self._calls.popleft()()

    def end(self) -> None:
        """Leave the loop; called in the thread."""
        self.ioloop.stop()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        mark_as_ours()
        try:
            self.ioloop.start()
        except Exception as error:
            LOG.exception("the I/O thread %s ended", self._thread.name)
            self._crashed(error)
        finally:
            self.ioloop.close()

    # --- Loop -----------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.ioloop.add_callback(callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return _PikaTimer(self.ioloop, self.ioloop.call_later(delay_ms / 1000, callback))
