"""Publishes the demo's messages, with the asynchronous producer of the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from dispatcher.client import GroupProducer
from dispatcher.demo.patience import Patience
from dispatcher.demo.workload import RowChange, encode
from dispatcher.errors import BrokerUnavailable

#: Unconfirmed messages at a time. Those of one group follow each other's confirm, so this spans many groups.
WINDOW: Final = 2_000
LOOK_S: Final = 0.1


def publish(
    url: str,
    queues: list[str],
    messages: Iterable[tuple[int, RowChange]],
    show: Callable[[int], None],
    patience: Patience | None = None,
) -> None:
    """Send each change to the queue of its index and wait until the broker has all; `show` gets the count.

    Raises SendFailed or ConfigurationError when the broker does not take them, BrokerUnavailable when it has
    taken nothing for as long as `patience` lasts.
    """
    asyncio.run(_Publishing(queues, show).run(url, messages, patience or Patience()))


class _Publishing:
    def __init__(self, queues: list[str], show: Callable[[int], None]) -> None:
        self._queues = queues
        self._show = show
        self._confirmed = 0

    async def run(self, url: str, messages: Iterable[tuple[int, RowChange]], patience: Patience) -> None:
        """Send them all, as long as confirms come."""
        sending = asyncio.ensure_future(self._send_all(url, messages))
        try:
            while not sending.done():
                await asyncio.wait({sending}, timeout=LOOK_S)
                self._show(self._confirmed)
                if not patience.lasts(self._confirmed):
                    raise BrokerUnavailable(
                        f"RabbitMQ has confirmed no message for {patience.limit_s:g} s, "
                        f"and {self._confirmed:,} before: does it run, and has it memory and disk?"
                    )
            await sending
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await sending

    async def _send_all(self, url: str, messages: Iterable[tuple[int, RowChange]]) -> None:
        async with GroupProducer(url, exchange="") as producer:
            waiting: list[asyncio.Future[str]] = []
            for number, (index, change) in enumerate(messages):
                answer = producer.submit(
                    encode(number, change), change.group, routing_key=self._queues[index]
                )
                answer.add_done_callback(self._count)
                waiting.append(answer)
                if len(waiting) == WINDOW:
                    await asyncio.gather(*waiting[: WINDOW // 2])
                    del waiting[: WINDOW // 2]
            await asyncio.gather(*waiting)

    def _count(self, answer: asyncio.Future[str]) -> None:
        self._confirmed += not answer.cancelled() and answer.exception() is None
