"""One consumer with an empty handler: `python -m bench.sdk.consume KIND URL PREFIX COUNT`.

It reads COUNT messages, acks each, and prints as JSON how long that took from the first to the last, on the
clock and on the processor.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import aio_pika
import pika
import uvloop
from aio_pika.abc import AbstractIncomingMessage

from bench.relay.contenders import INBOUND, LANE
from dispatcher.client import BlockingGroupConsumer, BlockingMessage, GroupConsumer, Message

#: Of every kind.
PREFETCH: Final = 500


class Watch:
    """Runs from the first message to the last one."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self._left = self._count = count
        self._done = done
        self._began_s = self._used_s = 0.0

    def tick(self) -> None:
        """A message was handled."""
        if self._left == self._count:
            self._began_s, self._used_s = time.monotonic(), time.process_time()
        self._left -= 1
        if not self._left:
            measured = {
                "seconds": time.monotonic() - self._began_s,
                "cpu_s": time.process_time() - self._used_s,
            }
            print(json.dumps(measured), flush=True)
            self._done()


def sdk(url: str, prefix: str, count: int) -> None:
    async def consume() -> None:
        consumer = GroupConsumer(url, LANE, "consumer", PREFETCH, prefix=prefix)
        watch = Watch(count, consumer.stop)

        async def handle(_: Message) -> None:
            watch.tick()

        await consumer.run(handle, stop_on_signals=False)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(consume())


def sdk_blocking(url: str, prefix: str, count: int) -> None:
    consumer = BlockingGroupConsumer(url, LANE, "consumer", PREFETCH, prefix=prefix)
    watch = Watch(count, consumer.stop)

    def handle(_: BlockingMessage) -> None:
        watch.tick()

    consumer.run(handle, stop_on_signals=False)


def plain_aio_pika(url: str, _: str, count: int) -> None:
    async def consume() -> None:
        done = asyncio.Event()
        watch = Watch(count, done.set)

        async def handle(message: AbstractIncomingMessage) -> None:
            watch.tick()
            await message.ack()

        connection = await aio_pika.connect(url)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        await (await channel.get_queue(INBOUND)).consume(handle)
        await done.wait()
        await connection.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(consume())


def plain_pika(url: str, _: str, count: int) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)
    watch = Watch(count, channel.stop_consuming)

    def handle(channel: Any, method: Any, *_: Any) -> None:
        watch.tick()
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(INBOUND, handle)
    channel.start_consuming()
    connection.close()


KINDS: Final[dict[str, Callable[[str, str, int], None]]] = {
    "sdk": sdk, "aio-pika": plain_aio_pika, "sdk-blocking": sdk_blocking, "pika": plain_pika,
}  # fmt: skip

if __name__ == "__main__":
    KINDS[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
