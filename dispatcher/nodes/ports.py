"""Free loopback ports that stay free while their server restarts."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_LOWEST: Final = 10_240
#: Linux' default start of the range for outgoing connections.
_EPHEMERAL_DEFAULT: Final = 32_768
_ATTEMPTS_MAX: Final = 1_000


def free_ports(count: int) -> list[int]:
    """`count` different ports on which no process listens.

    Below the range for outgoing connections: there a stranger's connection could take the port while its
    server restarts, or a client that polls it could even connect to itself. Another process may still be
    faster between this answer and the server's start, so starting has to be tried again.
    """
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        for _ in range(_ATTEMPTS_MAX):
            port = random.randrange(_LOWEST, _ephemeral_start())
            listener = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind((LOOPBACK, port))
                ports.append(port)
                if len(ports) == count:
                    return ports
    raise OSError(f"no {count} free ports on {LOOPBACK}")


def _ephemeral_start() -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if low > _LOWEST + 2 * _ATTEMPTS_MAX:
            return low
    return _EPHEMERAL_DEFAULT
