"""What a lane with `history` has kept (docs/semantics.md, H-1)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable

import aio_pika
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
from aio_pika.exceptions import AMQPError

from dispatcher.amqp.history_message import read_kept
from dispatcher.judge.record import MessageKey

#: Nothing more comes of a stream that has been silent for so long.
SILENT_S = 10
UNACKED_MAX = 500
Take = Callable[[AbstractIncomingMessage], Awaitable[None]]

#: A node that was hurt may still be fetching what it has missed.
READABLE_S = 60.0
BETWEEN_TRIES_S = 0.5


async def not_kept(
    amqp_urls: list[str], stream: str, published: frozenset[MessageKey], readable_s: float = READABLE_S
) -> list[str]:
    """All that was published is over, so it was acked: it has to be there."""
    missing, came = set(published), asyncio.Event()

    async def take(message: AbstractIncomingMessage) -> None:
        kept = read_kept(message.body)
        assert not isinstance(kept, str), "no reader has marked the stream"
        missing.discard(MessageKey.of(kept.content.body))
        came.set()
        await message.ack()

    try:
        connection = await _reading(amqp_urls, stream, take, readable_s)
    except AMQPError as refused:
        return [f"not live: the history {stream} can't be read at any node: {refused}"]
    with contextlib.suppress(TimeoutError):
        while missing:
            came.clear()
            async with asyncio.timeout(SILENT_S):
                await came.wait()
    await connection.close()
    return [f"not kept in the history: {number}" for number in sorted(missing)]


async def _reading(amqp_urls: list[str], stream: str, take: Take, readable_s: float) -> AbstractConnection:
    """A connection over which all of the stream comes. A node can be asked only if a replica of the stream
    runs there. Raises AMQPError."""
    deadline = time.monotonic() + readable_s
    for url in itertools.cycle(amqp_urls):
        try:
            connection = await aio_pika.connect(url)
            try:
                channel = await connection.channel()
                await channel.set_qos(UNACKED_MAX)
                queue = await channel.get_queue(stream)
                await queue.consume(take, arguments={"x-stream-offset": "first"})
            except BaseException:
                await connection.close()
                raise
            return connection
        except AMQPError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(BETWEEN_TRIES_S)  # sleeps: between two tries
    raise AssertionError("no node")
