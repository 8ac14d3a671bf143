"""A relay as one writes it at first: aio-pika, a callback per message, a confirmed publish, an ack.

`python -m bench.relay.naive URL SOURCE TARGET…`; the target is chosen by the group. Ends with SIGTERM.
"""

from __future__ import annotations

import asyncio
import sys
import zlib

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

PREFETCH = 1_000


async def relay(url: str, source: str, targets: list[str]) -> None:
    connection = await aio_pika.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    await channel.set_qos(prefetch_count=PREFETCH)
    exchange = channel.default_exchange

    async def on_message(message: AbstractIncomingMessage) -> None:
        group = str(message.headers["x-group-id"])
        copy = aio_pika.Message(
            message.body, headers=message.headers, delivery_mode=message.delivery_mode,
            message_id=message.message_id,
        )  # fmt: skip
        await exchange.publish(copy, targets[zlib.crc32(group.encode()) % len(targets)])
        await message.ack()

    queue = await channel.get_queue(source)
    await queue.consume(on_message)
    await asyncio.Future()


if __name__ == "__main__":
    asyncio.run(relay(sys.argv[1], sys.argv[2], sys.argv[3:]))
