"""Connects to a host whose name may have several addresses."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Callable
from typing import Any


async def connect_to_any(
    make_protocol: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    *,
    context: ssl.SSLContext | None,
    server_name: str | None,
) -> asyncio.Transport:
    """A connection to the first address that takes one, in random order: one that does not answer does not
    use up every attempt. `server_name`: what the certificate must name; None without `context`.

    Raises OSError, for what the resolver or the last address said (a problem of TLS comes before others), and
    UnicodeError for a host that is no name.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failures: list[OSError] = []
    for place in in_random_order(found, host):
        try:
            transport, _ = await loop.create_connection(
                make_protocol, place, port, ssl=context, server_hostname=server_name
            )
            return transport
        except OSError as failure:
            failures.append(failure)
    raise max(failures, key=lambda failure: isinstance(failure, ssl.SSLError))


def in_random_order(found: list[Any], host: str) -> list[str]:
    """The addresses that `getaddrinfo` has found for this host."""
    # An address stays as it is: it may name an interface.
    places = [str(place[0]) for *_, place in found] if len(found) > 1 else [host]
    return random.sample(places, len(places))
