"""What arrived, when, and what it cost until then."""

from __future__ import annotations

import asyncio
import time

from bench.relay.load import number_and_time


class Meter:
    """Counts arrivals at all consumers of a run; `done` is set with the last one expected."""

    def __init__(self, expected: int, *, latencies: bool = False) -> None:
        self.expected = expected
        self.count = 0
        self.first_at = self.last_at = 0.0
        #: From publish to arrival, by the messages' numbers.
        self.latencies_ms: dict[int, float] | None = {} if latencies else None
        self.done = asyncio.Event()
        self.failure: str | None = None

    def arrived(self, bodies: list[bytes]) -> None:
        """These came in one read."""
        if not self.count:
            self.first_at = time.monotonic()
        self.count += len(bodies)
        if self.latencies_ms is not None:
            now_ns = time.monotonic_ns()
            for body in bodies:
                number, sent_at_ns = number_and_time(body)
                self.latencies_ms[number] = (now_ns - sent_at_ns) / 1e6
        if self.count >= self.expected and not self.done.is_set():
            self.last_at = time.monotonic()
            self.done.set()

    def fail(self, why: str) -> None:
        """The run can't be finished."""
        self.failure = why
        self.done.set()

    @property
    def rate(self) -> float:
        """Messages a second from the first to the last."""
        return (self.count - 1) / (self.last_at - self.first_at)
