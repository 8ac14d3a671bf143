"""A TCP proxy before Redis that loses what a network may lose."""

from __future__ import annotations

import asyncio
import contextlib
import math
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Forwards until it is told otherwise; `url` is Redis as seen through it."""

    def __init__(self, redis_url: str) -> None:
        self._target = urlsplit(redis_url)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.swallow_replies = False
        self.refuse = self._over = False
        self._released = asyncio.Event()
        self._bytes_left = math.inf  # towards Redis, until they are held

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"redis://127.0.0.1:{port}{self._target.path}"

    def hold_requests_after(self, count: int) -> None:
        """Let this many bytes towards Redis pass, and the rest wait for `release_requests`."""
        self._bytes_left = count
        self._released.clear()

    def release_requests(self) -> None:
        self._bytes_left = math.inf
        self._released.set()

    def point_at(self, redis_url: str) -> None:
        """From now on it is another Redis; connections to the one before are reset."""
        self._target = urlsplit(redis_url)
        self.cut()

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._over = True
        self.cut()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        if self.refuse:
            writer.transport.abort()
            return
        try:
            there_reader, there = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:  # Redis is not there now
            writer.transport.abort()
            return
        if self._over:  # since then
            for end in (writer, there):
                end.transport.abort()
            return
        ends = {writer, there}
        self._writers |= ends
        pumps = [
            asyncio.ensure_future(self._pump(reader, there, replies=False)),
            asyncio.ensure_future(self._pump(there_reader, writer, replies=True)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)
        for end in ends:
            end.transport.abort()
        self._writers -= ends

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if not replies:
                    await self._forward(data, writer)
                elif not self.swallow_replies:
                    writer.write(data)

    async def _forward(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        passing = int(min(self._bytes_left, len(data)))
        self._bytes_left -= passing
        writer.write(data[:passing])
        if passing < len(data):
            await self._released.wait()
            writer.write(data[passing:])
