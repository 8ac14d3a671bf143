"""Handlers that would process nothing, or everything twice, are refused before anything is consumed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from dispatcher.client import BlockingGroupConsumer, GroupConsumer
from dispatcher.client.testing import PracticeLane

NOWHERE = "amqp://127.0.0.1:1/"


async def _async(*_: Any) -> None:
    """As `GroupConsumer` calls it."""


def _plain(*_: Any) -> None:
    """As `BlockingGroupConsumer` calls it."""


async def _async_generator(_: Any) -> AsyncIterator[None]:
    yield


def _generator(_: Any) -> Iterator[None]:
    yield


class _AsyncCall:
    async def __call__(self, *_: Any) -> None:
        """An object may be a handler."""

    async def method(self, *_: Any) -> None:
        """So may its method."""


class _PlainCall:
    def __call__(self, *_: Any) -> None:
        """An object may be a handler."""


ASYNCHRONOUS = [_async, partial(_async, 1), _AsyncCall(), _AsyncCall().method, partial(_AsyncCall(), 1)]
PLAIN = [_plain, partial(_plain, 1), _PlainCall(), lambda _: None, print]
NEITHER = [_async_generator, _generator, partial(_generator), None, "handle"]


@pytest.mark.parametrize("handler", [*PLAIN, *NEITHER])
async def test_the_asynchronous_consumer_takes_coroutine_functions(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"^handler: "):
        await GroupConsumer(NOWHERE, "orders", "c1").run(handler)
    with pytest.raises(TypeError, match=r"^handler: "):
        await PracticeLane().run(handler)


@pytest.mark.parametrize("handler", [*ASYNCHRONOUS, *NEITHER])
def test_the_blocking_consumer_takes_functions_that_do_their_work_when_called(handler: Any) -> None:
    with pytest.raises(TypeError, match=r"^handler: "):
        BlockingGroupConsumer(NOWHERE, "orders", "c1").run(handler)
    with pytest.raises(TypeError, match=r"^handler: "):
        PracticeLane().run_blocking(handler)


@pytest.mark.parametrize("handler", ASYNCHRONOUS)
async def test_every_kind_of_coroutine_function_is_taken(handler: Any) -> None:
    lane = PracticeLane()
    lane.add(b"1")
    assert [outcome.reason for outcome in await lane.run(handler)] == [None]


@pytest.mark.parametrize("handler", PLAIN)
def test_every_kind_of_function_is_taken(handler: Any) -> None:
    lane = PracticeLane()
    lane.add(b"1")
    assert [outcome.reason for outcome in lane.run_blocking(handler)] == [None]


def test_a_result_that_must_be_awaited_settles_nothing() -> None:
    lane = PracticeLane()
    lane.add(b"1")
    with pytest.raises(TypeError, match=r"^handler: "):
        lane.run_blocking(lambda message: _async(message))
