"""A TCP proxy that can cut every connection and refuse new ones."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from urllib.parse import urlsplit, urlunsplit


class TcpProxy:
    """`async with TcpProxy(amqp_url) as proxy`: connect to `proxy.url` instead."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self._parts = urlsplit(url)
        self._tls = tls
        self._clients: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._streams: set[asyncio.Task[None]] = set()
        self.refuses = False
        self.refused = 0

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        if self._streams:
            await asyncio.wait(self._streams)

    @property
    def url(self) -> str:
        port = self._server.sockets[0].getsockname()[1]
        login = self._parts.netloc.rpartition("@")[0]
        scheme = "amqps" if self._tls else "amqp"
        return urlunsplit(self._parts._replace(scheme=scheme, netloc=f"{login}@127.0.0.1:{port}"))

    def cut(self) -> None:
        """Reset every connection, in both directions, without a word."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self._clients.clear()

    def inject(self, frame: bytes) -> None:
        """Let every client receive this as if its broker had sent it; the stream must be idle."""
        for client in self._clients:
            client.write(frame)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        if self.refuses:
            self.refused += 1
            writer.transport.abort()
            return
        up_reader, up_writer = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        self._writers |= {writer, up_writer}
        self._clients.add(writer)
        await asyncio.gather(self._pump(reader, up_writer), self._pump(up_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
