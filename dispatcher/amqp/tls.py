"""Who we are to the broker, and how we know that it is the broker: TLS and login from the settings."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dispatcher.amqp.handshake import Login
from dispatcher.errors import ConfigurationError

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
    return client_context(settings) if settings.address.tls else None


def client_context(settings: RabbitSettings) -> ssl.SSLContext:
    """Whom to trust, and who we are.

    Raises ConfigurationError when a file is missing or is not what it should be.
    """
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except OSError as problem:
        raise ConfigurationError(f"rabbitmq.ca_file: {settings.ca_file}: {_why(problem)}") from None
    if settings.cert_file is not None:
        try:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        except OSError as problem:
            files = " and ".join(file for file in (settings.cert_file, settings.key_file) if file)
            raise ConfigurationError(f"rabbitmq.cert_file: {files}: {_why(problem)}") from None
    return context


def _why(problem: OSError) -> str:
    if isinstance(problem, ssl.SSLError):
        return f"not a PEM file that can be used ({problem.reason or problem})"
    return problem.strerror or str(problem)
