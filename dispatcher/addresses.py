"""Connects to a host whose name may have several addresses."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Callable


async def connect_to_any(
    make_protocol: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    *,
    context: ssl.SSLContext | None,
    server_name: str | None,
) -> asyncio.Transport:
    """A connection to the first address that takes one, in random order: who answers nothing at one of them
    does not use up every attempt. `server_name`: what the certificate must name; None without `context`.

    Raises OSError, for what the resolver or the last address said, and UnicodeError for a host that is no
    name.
    """
    loop = asyncio.get_running_loop()
    failure = OSError("its name has no address")
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for *_, place in random.sample(found, len(found)):
        try:
            transport, _ = await loop.create_connection(
                make_protocol, str(place[0]), port, ssl=context, server_hostname=server_name
            )
            return transport
        except OSError as error:
            failure = error
    raise failure
