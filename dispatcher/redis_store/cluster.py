"""Which node of a Redis Cluster has a key now: hash slots, and what nodes say about them."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from dispatcher.errors import ConfigurationError, DispatcherError, StoreUnavailable

#: How many a Redis Cluster has.
SLOTS: Final = 16_384
#: How long one node may think about its answer before the next one is asked as well.
HEAD_START_S: Final = 0.3

T = TypeVar("T")


def slot_of(key: str) -> int:
    """The hash slot of a key; of its hash tag, if it has one."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    hashed = tag if opened and closed and tag else key
    return binascii.crc_hqx(hashed.encode(), 0) % SLOTS


def primary_in(slots: list[Any], slot: int) -> tuple[str, int] | None:
    """Host and port of the slot's primary in an answer to CLUSTER SLOTS, None: no node has the slot. An
    empty host is that of the node that was asked."""
    for first, last, primary, *_ in slots:
        if first <= slot <= last:
            return (primary[0] or b"").decode().removeprefix("?"), int(primary[1])
    return None


async def first_answer(asks: Iterable[Callable[[], Coroutine[Any, Any, T]]]) -> T:
    """The first of these that succeeds. Each begins when one before it has failed, or after a head start.

    Raises ConfigurationError if one says that, and no other one answers; else StoreUnavailable.
    """
    waiting = list(asks)
    begun: list[asyncio.Task[T]] = []
    failures: list[DispatcherError] = []
    running: set[asyncio.Task[T]] = set()
    try:
        while waiting or running:
            if waiting:
                begun.append(asyncio.ensure_future(waiting.pop(0)()))
                running.add(begun[-1])
            done, running = await asyncio.wait(
                running, timeout=HEAD_START_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                try:
                    return task.result()
                except DispatcherError as failure:
                    failures.append(failure)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
    for problem in failures:
        if isinstance(problem, ConfigurationError):
            raise problem
    raise StoreUnavailable("; ".join(sorted({str(problem) for problem in failures})))
