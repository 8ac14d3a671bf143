"""What a lane with `history` has kept (docs/semantics.md, H-1)."""

from __future__ import annotations

import asyncio
import contextlib

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from dispatcher.amqp.history_message import read_kept
from dispatcher.judge.record import MessageKey

#: Nothing more comes of a stream that has been silent for so long.
SILENT_S = 10
UNACKED_MAX = 500


async def not_kept(amqp_url: str, stream: str, published: frozenset[MessageKey]) -> list[str]:
    """All that was published is over, so it was acked: it has to be there."""
    missing, came = set(published), asyncio.Event()

    async def take(message: AbstractIncomingMessage) -> None:
        kept = read_kept(message.body)
        assert not isinstance(kept, str), "no reader has marked the stream"
        missing.discard(MessageKey.of(kept.content.body))
        came.set()
        await message.ack()

    connection = await aio_pika.connect(amqp_url)
    channel = await connection.channel()
    await channel.set_qos(UNACKED_MAX)
    queue = await channel.get_queue(stream)
    await queue.consume(take, arguments={"x-stream-offset": "first"})
    with contextlib.suppress(TimeoutError):
        while missing:
            came.clear()
            async with asyncio.timeout(SILENT_S):
                await came.wait()
    await connection.close()
    return [f"not kept in the history: {number}" for number in sorted(missing)]
