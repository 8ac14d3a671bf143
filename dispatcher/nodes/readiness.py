"""When a server may be called started."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from dispatcher.errors import BrokerUnavailable
from dispatcher.nodes.management import Management

_TIMEOUT_S = 1.0


def rabbitmq_answers(amqp_url: str, management_url: str) -> bool:
    """The AMQP port accepts connections and the management API answers."""
    parts = urlsplit(amqp_url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 5672), _TIMEOUT_S).close()
        Management(management_url).request("overview")
    except (OSError, BrokerUnavailable):
        return False
    return True


def redis_answers(url: str) -> bool:
    """Redis answers PING; one that asks for a password answers too, one that still loads does not."""
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 6379), _TIMEOUT_S) as client:
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False
