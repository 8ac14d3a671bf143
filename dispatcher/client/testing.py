"""Tests of handlers without broker and dispatcher: real order, retries and outcomes, no network.

lane = PracticeLane()
lane.add(b"place", group="order-17")
lane.add(b"ship", group="order-17")
outcomes = await lane.run(handle)
assert [outcome.reason for outcome in outcomes] == [None, None]
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from dispatcher.client import properties as amqp_properties
from dispatcher.client.copies import BlockingMessage, Copy, Message, Numbers, Settler
from dispatcher.client.handler_kinds import check_asynchronous, check_blocking
from dispatcher.client.properties import Properties
from dispatcher.client.retries import RetryPolicy
from dispatcher.client.runner import Handler, Runner
from dispatcher.client.sending import GroupId, group_bytes
from dispatcher.client.thread_runner import BlockingHandler, ThreadRunner

#: A handler that takes longer than this in a test hangs.
TIMEOUT_S = 30.0


class Outcome(NamedTuple):
    """How a message ended: acked (no reason) or failed, and the number of calls of the handler."""

    body: bytes
    reason: str | None
    attempts: int


class PracticeLane:
    """Messages for one consumer. They go to the handler as `run` of a consumer would give them to it."""

    def __init__(self) -> None:
        self._planned: list[tuple[Numbers, bytes, bytes]] = []
        self._group_seqs: defaultdict[bytes, int] = defaultdict(int)

    def add(
        self,
        body: bytes = b"",
        group: GroupId | None = None,
        *,
        headers: Mapping[str | bytes, Any] | None = None,
        properties: Properties | None = None,
        epoch: int = 1,
        attempt: int = 1,
        deadline_at_ms: int | None = None,
    ) -> None:
        """The next message; the first of its group is the first for the consumer."""
        key = None if group is None else group_bytes(group)
        if key is not None:
            self._group_seqs[key] += 1
        seq = len(self._planned) + 1
        numbers = Numbers(
            seq, key, self._group_seqs[key] if key is not None else 0, epoch, attempt, deadline_at_ms,
            seq.to_bytes(16),
        )  # fmt: skip
        self._planned.append(
            (numbers, amqp_properties.write(properties or Properties(), headers or {}), body)
        )

    async def run(
        self, handler: Handler, *, concurrency: int = 10, attempts: int = 3, backoff_ms: int = 0
    ) -> list[Outcome]:
        """Handle everything added; the outcomes are in the order in which the messages were settled.

        Raises TypeError for a handler that `GroupConsumer.run` refuses.
        """
        check_asynchronous(handler)
        outcomes: list[Outcome] = []
        policy = RetryPolicy(attempts=attempts, backoff_ms=backoff_ms)
        runner = Runner(handler, concurrency, lambda: policy)
        runner.add(Message(*planned, _recording(outcomes)) for planned in self._planned)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await runner.idle()
        finally:
            await runner.cancel()
        return outcomes

    def run_blocking(
        self, handler: BlockingHandler, *, concurrency: int = 10, attempts: int = 3, backoff_ms: int = 0
    ) -> list[Outcome]:
        """`run` for a handler in threads. Raises TimeoutError."""
        check_blocking(handler)
        broken: list[Exception] = []
        outcomes: list[Outcome] = []
        done = threading.Event()
        record = _recording(outcomes)

        def settled(message: Copy, reason: str | None, calls: int) -> bool:
            record(message, reason, calls)
            if len(outcomes) == len(self._planned):
                done.set()
            return True

        policy = RetryPolicy(attempts=attempts, backoff_ms=backoff_ms)

        def is_broken(error: Exception) -> None:
            broken.append(error)
            done.set()

        runner = ThreadRunner(handler, concurrency, lambda: policy, is_broken)
        runner.add(BlockingMessage(*planned, settled) for planned in self._planned)
        runner.start()
        try:
            if self._planned and not done.wait(TIMEOUT_S):
                raise TimeoutError(f"not handled within {TIMEOUT_S} s")
        finally:
            runner.stop()
        if broken:
            raise broken[0]
        return outcomes


def _recording(outcomes: list[Outcome]) -> Settler:
    def settled(message: Copy, reason: str | None, attempts: int) -> bool:
        outcomes.append(Outcome(message.body, reason, attempts))
        return True

    return settled
