"""Publishes the demo's messages, with the asynchronous producer of the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from dispatcher.client import GroupProducer
from dispatcher.demo.workload import RowChange, encode

#: Unconfirmed messages at a time. Those of one group follow each other's confirm, so this spans many groups.
WINDOW: Final = 2_000


def publish(
    url: str, queues: list[str], messages: Iterable[tuple[int, RowChange]], show: Callable[[int], None]
) -> None:
    """Send each change to the queue of its index and wait until the broker has all; `show` gets the count.

    Raises SendFailed or ConfigurationError when the broker does not take them.
    """
    asyncio.run(_publish(url, queues, messages, show))


async def _publish(
    url: str, queues: list[str], messages: Iterable[tuple[int, RowChange]], show: Callable[[int], None]
) -> None:
    async with GroupProducer(url, exchange="") as producer:
        waiting: list[asyncio.Future[str]] = []
        for number, (index, change) in enumerate(messages):
            answer = producer.submit(encode(number, change), change.group, routing_key=queues[index])
            waiting.append(answer)
            if len(waiting) == WINDOW:
                show(number + 1 - WINDOW)
                await asyncio.gather(*waiting[: WINDOW // 2])
                del waiting[: WINDOW // 2]
        await asyncio.gather(*waiting)
