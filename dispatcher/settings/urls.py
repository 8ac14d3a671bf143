"""Connection URLs: read in one place, and shown nowhere without their password taken out here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

#: RabbitMQ's own default, used when the URL has no user.
_DEFAULT_USER: Final = "guest"
_PASSWORD = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^\s/@:]*):\S*@", re.IGNORECASE)


def redact(text: str) -> str:
    """The text with the password of every URL in it replaced by `***`.

    A password that should have been percent-encoded is taken out too, if need be with what follows it.
    """
    return _PASSWORD.sub(r"\g<before>:***@", text)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """What an amqp:// or amqps:// URL says, percent-decoded."""

    host: str
    port: int
    tls: bool
    vhost: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """What a redis:// or rediss:// URL says, percent-decoded. `user` and `password` may be absent."""

    host: str
    port: int
    tls: bool
    database: int
    user: str | None
    password: str | None = field(repr=False)


def parse_broker_url(url: str) -> BrokerAddress:
    """Read `amqp[s]://user:password@host:port/vhost`; no path and `/` both mean the vhost `/`.

    Raises ValueError, which never quotes the URL: it may hold a password.
    """
    parts, port = _split(url, {"amqp": 5672, "amqps": 5671})
    path = parts.path.removeprefix("/")
    if "/" in path:
        raise ValueError("the vhost in the URL must be percent-encoded (a slash is %2F)")
    return BrokerAddress(
        host=parts.hostname or "", port=port, tls=parts.scheme == "amqps", vhost=unquote(path) or "/",
        user=unquote(parts.username or _DEFAULT_USER), password=unquote(parts.password or _DEFAULT_USER),
    )  # fmt: skip


def parse_store_url(url: str) -> StoreAddress:
    """Read `redis[s]://user:password@host:port/database`; no path means database 0.

    Raises ValueError, which never quotes the URL: it may hold a password.
    """
    parts, port = _split(url, {"redis": 6379, "rediss": 6379})
    path = parts.path.removeprefix("/")
    if path and not re.fullmatch(r"[0-9]{1,5}", path):
        raise ValueError("the path of the URL must be a database number, for example /0")
    return StoreAddress(
        host=parts.hostname or "", port=port, tls=parts.scheme == "rediss", database=int(path or 0),
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
    )  # fmt: skip


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:8642` or `[::1]:8642`. Raises ValueError."""
    found = re.fullmatch(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})", text)
    if found is None or int(found["port"]) > 65_535:
        raise ValueError("must be host:port, for example 127.0.0.1:8642 (port 0 picks a free one)")
    return found["v6"] or found["host"], int(found["port"])


def _split(url: str, default_ports: dict[str, int]) -> tuple[SplitResult, int]:
    schemes = " or ".join(f"{scheme}://" for scheme in default_ports)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("is not a URL (ports are 1 to 65535, other signs percent-encoded)") from None
    if parts.scheme not in default_ports:
        raise ValueError(f"must be a URL that begins with {schemes}")
    if not parts.hostname:
        raise ValueError("the URL names no host")
    if parts.query or parts.fragment:
        raise ValueError("the URL must end after its path (other settings are keys beside url)")
    if port == 0:
        raise ValueError("the port must be 1 to 65535")
    return parts, port or default_ports[parts.scheme]
