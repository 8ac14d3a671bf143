"""The way to RabbitMQ for one program: it can be cut, and it counts the bundles that come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from dispatcher.nodes.ports import LOOPBACK
from dispatcher.wire import protocol

_AMQP_PORT: Final = 5672
_CHUNK: Final = 65_536
#: Nothing else that comes to a program of the suite has these bytes.
_BUNDLE: Final = protocol.TYPE_BUNDLE.encode()


class CuttableWay:
    """`async with CuttableWay(amqp_url) as way`: connect to `way.url` instead."""

    def __init__(self, amqp_url: str) -> None:
        self._parts = urlsplit(amqp_url)
        self._writers: set[asyncio.StreamWriter] = set()
        self._streams: set[asyncio.Task[None]] = set()
        self.is_open = True  # else new connections are refused
        self.bundles = 0  # that came to the program

    async def __aenter__(self) -> CuttableWay:
        self._server = await asyncio.start_server(self._accepted, LOOPBACK, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        if self._streams:
            await asyncio.wait(self._streams)

    @property
    def url(self) -> str:
        port = self._server.sockets[0].getsockname()[1]
        login, at, _ = self._parts.netloc.rpartition("@")
        return urlunsplit(self._parts._replace(netloc=f"{login}{at}{LOOPBACK}:{port}"))

    @property
    def connections(self) -> int:
        """Open now."""
        return len(self._writers) // 2

    def cut(self) -> None:
        """Reset every connection, without a word."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._streams.add(task)
            task.add_done_callback(self._streams.discard)
        if not self.is_open:
            writer.transport.abort()
            return
        try:
            host, port = self._parts.hostname or "localhost", self._parts.port or _AMQP_PORT
            there, back = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, back}
        self._writers |= ends
        try:
            await asyncio.gather(_pump(reader, back), _pump(there, writer, self._count))
        finally:
            self._writers -= ends

    def _count(self, data: bytes) -> None:
        self.bundles += data.count(_BUNDLE)


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    look: Callable[[bytes], None] = lambda _: None,
) -> None:
    """`look` is told what passes, with the end of what passed before, so that it sees each type once."""
    end = b""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):
            look(end + data)
            end = (end + data)[1 - len(_BUNDLE) :]
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
