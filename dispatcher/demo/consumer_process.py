"""A consumer of the demo as its director sees it: a process to start, stop and kill, and its records."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

from dispatcher.demo.consumer import ConsumerOptions
from dispatcher.demo.patience import stop_patiently
from dispatcher.judge.record import HandlingRecord, LifeRecord
from dispatcher.nodes.process import GuardedProcess


class ConsumerProcess:
    """One consumer. Nothing of it outlives this process, however that ends."""

    def __init__(self, options: ConsumerOptions) -> None:
        self.name = options.name
        self.kind = "blocking" if options.blocking else "async"
        self.killed_at: float | None = None  # on the clock of the records
        self._process = GuardedProcess(options.name)
        records = self._process.directory / f"{options.name}.record"
        self._gate = self._process.directory / "gate"
        self._options = replace(options, records=str(records), gate=str(self._gate))
        self._record = LifeRecord(records)
        self.done_count = 0
        self.recent_count = 0  # ended between the last two calls of `read`

    @property
    def is_ready(self) -> bool:
        """It waits for the start, as far as `read` has seen it."""
        return self._record.is_ready

    @property
    def has_joined(self) -> bool:
        """The dispatcher has welcomed it, as far as `read` has seen it."""
        return self._record.has_joined

    @property
    def in_hand(self) -> int:
        """Messages that it has begun and not ended, as far as `read` has seen it."""
        return sum(handling.end is None for handling in self._record.handlings)

    @property
    def handlings(self) -> list[HandlingRecord]:
        """Everything that it began, as far as `read` has seen it."""
        return self._record.handlings

    def start(self) -> None:
        """Start its process, which then waits for `let_join`."""
        self._process.start(self._options.command(), dict(os.environ))

    def let_join(self) -> None:
        """Let it join the lane."""
        self._gate.touch()

    def read(self) -> list[HandlingRecord]:
        """What it has ended since the last call."""
        ended = self._record.read()
        self.recent_count = len(ended)
        self.done_count += self.recent_count
        return ended

    def kill9(self) -> None:
        """End it as a crash would.

        The time is taken before it is known to be gone: others get its messages within milliseconds.
        """
        if self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGKILL)
        self.killed_at = time.monotonic()
        self._process.kill()

    def stop(self) -> None:
        """Let it finish what it has in hand, and end; it is killed when it does not get on with that."""
        stop_patiently(self._process)

    def close(self) -> None:
        """End it in any case and remove its files."""
        self._process.close()

    def last_words(self) -> str | None:
        """Why it ended by itself, None if it runs or was ended on purpose."""
        if self.killed_at is not None or self._process.is_alive():
            return None
        lines = self._process.log_tail().splitlines()
        return f"{self.name} ended: {lines[-1] if lines else 'it wrote nothing'}"
