"""Who we are to the broker, and how we know that it is the broker: TLS and login from the settings."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dispatcher.amqp.handshake import Login
from dispatcher.certificates import client_context

if TYPE_CHECKING:
    from dispatcher.settings import RabbitSettings


def login(settings: RabbitSettings, name: str) -> Login:
    """How to log in; by the client certificate when there is one and the URL names no user."""
    address = settings.address
    by_certificate = settings.cert_file is not None and urlsplit(settings.url).username is None
    return Login(
        user=None if by_certificate else address.user, password=address.password,
        vhost=address.vhost, name=name, heartbeat_s=_agreed_heartbeat_s(settings),
    )  # fmt: skip


def _agreed_heartbeat_s(settings: RabbitSettings) -> int:
    """RabbitMQ gives a silent peer up after two to three of the intervals that were agreed. One second less
    than configured leaves the successor of a frozen leader its time within three of the configured ones."""
    return max(1, settings.heartbeat_ms // 1_000 - 1)


def tls_context(settings: RabbitSettings) -> ssl.SSLContext | None:
    """The context of an amqps:// URL, None for amqp://. Raises ConfigurationError."""
    return client_context("rabbitmq", settings) if settings.address.tls else None
