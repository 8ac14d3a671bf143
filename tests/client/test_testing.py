"""Handlers can be tested without a network."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.client import BlockingMessage, Message, RejectMessage, RetryLater
from dispatcher.client.testing import Outcome, PracticeLane


def lane(*bodies: bytes, **options: Any) -> PracticeLane:
    made = PracticeLane()
    for body in bodies:
        made.add(body, group="g", **options)
    return made


async def test_a_handler_gets_messages_in_order() -> None:
    seen: list[tuple[bytes, bool, Any]] = []

    async def handle(message: Message) -> None:
        seen.append((message.body, message.first_for_consumer, message.headers["h"]))

    outcomes = await lane(b"1", b"2", b"3", headers={"h": 1.5}).run(handle)
    assert seen == [(b"1", True, 1.5), (b"2", False, 1.5), (b"3", False, 1.5)]
    assert outcomes == [Outcome(body, None, 1) for body in (b"1", b"2", b"3")]


async def test_retries_and_failures_are_seen() -> None:
    async def handle(message: Message) -> None:
        if message.body == b"rejected":
            raise RejectMessage("never")
        raise ValueError("no luck")

    outcomes = await lane(b"unlucky", b"rejected").run(handle, attempts=2)
    assert outcomes == [Outcome(b"unlucky", "ValueError: no luck", 2), Outcome(b"rejected", "never", 1)]


async def test_groups_run_in_parallel() -> None:
    both = asyncio.Barrier(2)
    made = PracticeLane()
    made.add(b"1", group="a")
    made.add(b"2", group="b")

    async def handle(message: Message) -> None:
        await both.wait()

    assert len(await made.run(handle)) == 2


def test_blocking_handlers_too() -> None:
    def handle(message: BlockingMessage) -> None:
        if message.body == b"2":
            raise RejectMessage("never")

    outcomes = lane(b"1", b"2", b"3").run_blocking(handle)
    assert [(outcome.body, outcome.reason) for outcome in outcomes] == [
        (b"1", None), (b"2", "never"), (b"3", None),
    ]  # fmt: skip
    assert PracticeLane().run_blocking(handle) == []


async def test_options_that_can_not_work_are_named() -> None:
    async def handle(message: Message) -> None: ...

    with pytest.raises(ValueError, match="concurrency must be at least 1"):
        await lane(b"1").run(handle, concurrency=0)


async def test_calls_that_are_no_attempts_use_none_up() -> None:
    calls: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        calls.append((message.calls, message.attempt))
        if message.calls <= 5:
            raise RetryLater(0, "not yet", counts=False)
        raise ValueError("broken")

    outcomes = await lane(b"1").run(handle, attempts=2)
    assert calls == [(number, 1) for number in range(1, 8)]
    assert [(outcome.reason, outcome.attempts) for outcome in outcomes] == [("ValueError: broken", 7)]
