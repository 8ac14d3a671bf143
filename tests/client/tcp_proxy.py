"""A TCP proxy that can cut every connection, refuse new ones, and let nothing pass for a while."""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit


@dataclass(slots=True)
class Connection:
    """One connection, on CLOCK_MONOTONIC."""

    opened: float
    closed: float = math.inf  # the server has closed it, or can't but see that it is closed
    #: If `closed` is when others gave up its server: when the end was seen.
    served_until: float = -math.inf


class TcpProxy:
    """`async with TcpProxy(url) as proxy`: connect to `proxy.url` instead."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self._parts = urlsplit(url)
        self._tls = tls
        self._clients: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._streams: set[asyncio.Task[None]] = set()
        self.refuses = False
        self.refused = 0
        self.connections: list[Connection] = []
        self._to_server_open = asyncio.Event()
        self._to_client_open = asyncio.Event()
        self.resume()

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.resume()
        self.cut()
        if self._streams:
            await asyncio.wait(self._streams)

    @property
    def url(self) -> str:
        port = self._server.sockets[0].getsockname()[1]
        login, at, _ = self._parts.netloc.rpartition("@")
        scheme = "amqps" if self._tls else self._parts.scheme
        return urlunsplit(self._parts._replace(scheme=scheme, netloc=f"{login}{at}127.0.0.1:{port}"))

    def point_at(self, url: str) -> None:
        """Connections that are made from now on go to another server."""
        self._parts = urlsplit(url)

    def cut(self) -> None:
        """Reset every connection, in both directions, without a word."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self._clients.clear()

    def stall(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Let nothing pass in these directions, also no end of a connection, until `resume` or `cut`."""
        if to_server:
            self._to_server_open.clear()
        if to_client:
            self._to_client_open.clear()

    def resume(self) -> None:
        """Let pass what was held back and what comes."""
        self._to_server_open.set()
        self._to_client_open.set()

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
        try:
            up_reader, up_writer = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        except OSError:  # the server is not there now
            writer.transport.abort()
            return
        connection = Connection(time.monotonic())
        self.connections.append(connection)
        ends = {writer, up_writer}
        self._writers |= ends
        self._clients.add(writer)
        try:
            await asyncio.gather(
                self._pump(reader, up_writer, self._to_server_open, connection),
                self._pump(up_reader, writer, self._to_client_open, connection),
            )
        finally:
            self._writers -= ends
            self._clients.discard(writer)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        is_open: asyncio.Event,
        connection: Connection,
    ) -> None:
        from_server = is_open is self._to_client_open
        held = asyncio.Queue[bytes]()
        forward = asyncio.create_task(self._forward(held, writer, is_open))
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65_536):
                # Read on also while nothing may pass: the end of the connection must be seen when it comes.
                held.put_nowait(data)
        if from_server:
            connection.closed = min(connection.closed, time.monotonic())
        held.put_nowait(b"")
        await forward
        if not from_server:
            connection.closed = min(connection.closed, time.monotonic())

    async def _forward(
        self, held: asyncio.Queue[bytes], writer: asyncio.StreamWriter, is_open: asyncio.Event
    ) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while data := await held.get():
                await is_open.wait()
                writer.write(data)
                await writer.drain()
            await is_open.wait()
        writer.transport.abort()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()
