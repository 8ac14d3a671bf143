"""A name with two addresses: who listens at the first one hangs up, the server is at the second one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from tests.client.tcp_proxy import TcpProxy

NAME = "several.internal"
_ADDRESSES = ("127.0.0.2", "127.0.0.1")


def places(port: int) -> list[Any]:
    """What a resolver says of the name, always in this order."""
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in _ADDRESSES]


class NamingLoop(asyncio.SelectorEventLoop):
    """A loop whose resolver knows the name."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        return places(port) if host == NAME else await super().getaddrinfo(host, port, **options)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """In a loop that knows the name."""
    with asyncio.Runner(loop_factory=NamingLoop) as runner:
        runner.run(coroutine)


@contextlib.asynccontextmanager
async def named(url: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """This server by the name."""
    first, second = _ADDRESSES
    async with TcpProxy(url, tls) as proxy:
        port = proxy.url.partition(f"@{second}:")[2].partition("/")[0]
        hangs_up = await asyncio.start_server(lambda _, writer: writer.close(), first, int(port))
        async with hangs_up:
            yield proxy.url.replace(f"@{second}:", f"@{NAME}:")
