"""Connection URLs: read in one place, and shown nowhere without their password taken out here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

PORT_MAX: Final = 65_535
#: RabbitMQ's own default, used when the URL has no user.
_DEFAULT_USER: Final = "guest"
_SENTINEL_SCHEMES: Final = ("redis+sentinel", "rediss+sentinel")
_CLUSTER_SCHEMES: Final = ("redis+cluster", "rediss+cluster")
_DATABASE: Final = re.compile(r"[0-9]{1,5}")
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
    """What a redis:// or rediss:// URL says, percent-decoded. `user` and `password` may be absent.

    Of a redis+sentinel:// URL `sentinels` are the hosts and ports, the first of which is `host` and `port`,
    and `service` is what they watch; the rest is for the servers that they name. Of a redis+cluster:// URL
    `nodes` are the hosts and ports, the first of which is `host` and `port`. Of several redis:// URLs
    `servers` are the hosts and ports, the first of which is `host` and `port`: a master and its replicas.
    """

    host: str
    port: int
    tls: bool
    database: int
    user: str | None
    password: str | None = field(repr=False)
    sentinels: tuple[tuple[str, int], ...] = ()
    service: str = ""
    nodes: tuple[tuple[str, int], ...] = ()
    servers: tuple[tuple[str, int], ...] = ()

    def url_of(self, host: str, port: int) -> str:
        """The URL of this server with the same user, password and database."""
        who = ""
        if self.password is not None:
            who = f"{quote(self.user or '', safe='')}:{quote(self.password, safe='')}@"
        host = f"[{host}]" if ":" in host else host
        return f"{'rediss' if self.tls else 'redis'}://{who}{host}:{port}/{self.database}"


def parse_broker_url(url: str) -> BrokerAddress:
    """Read `amqp[s]://user:password@host:port/vhost`; no path and `/` both mean the vhost `/`.

    Raises ValueError, which never quotes the URL: it may hold a password.
    """
    parts, port = split_url(url, {"amqp": 5672, "amqps": 5671})
    path = parts.path.removeprefix("/")
    if "/" in path:
        raise ValueError("the vhost in the URL must be percent-encoded (a slash is %2F)")
    return BrokerAddress(
        host=parts.hostname or "", port=port, tls=parts.scheme == "amqps", vhost=unquote(path) or "/",
        user=unquote(parts.username or _DEFAULT_USER), password=unquote(parts.password or _DEFAULT_USER),
    )  # fmt: skip


def parse_store_url(url: str) -> StoreAddress:
    """Read `redis[s]://user:password@host:port/database`; no path means database 0. Or
    `redis[s]+sentinel://user:password@host:port,host:port/service/database`, or
    `redis[s]+cluster://user:password@host:port,host:port`.

    Raises ValueError, which never quotes the URL: it may hold a password.
    """
    scheme = url.partition("://")[0]
    if scheme in _SENTINEL_SCHEMES:
        return _parse_sentinel_url(url)
    if scheme in _CLUSTER_SCHEMES:
        return _parse_cluster_url(url)
    parts, port = split_url(url, {"redis": 6379, "rediss": 6379})
    path = parts.path.removeprefix("/")
    if path and not _DATABASE.fullmatch(path):
        raise ValueError("the path of the URL must be a database number, for example /0")
    return StoreAddress(
        host=parts.hostname or "", port=port, tls=parts.scheme == "rediss", database=int(path or 0),
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
    )  # fmt: skip


def join_store_urls(urls: Sequence[str]) -> StoreAddress:
    """Read several URLs as one that names the hosts of all of them."""
    first, *others = addresses = [parse_store_url(url) for url in urls]
    if not others:
        return first
    is_plain = not first.sentinels and not first.nodes
    return replace(
        first,
        sentinels=tuple(place for each in addresses for place in each.sentinels),
        nodes=tuple(place for each in addresses for place in each.nodes),
        servers=tuple((each.host, each.port) for each in addresses) if is_plain else (),
    )


def differ_in_hosts_only(urls: Sequence[str]) -> bool:
    """Whether these URLs of Redis say the same but for their hosts and ports."""
    nowhere: dict[str, Any] = {"host": "", "port": 0, "sentinels": (), "nodes": ()}
    rest = {(url.partition("://")[0].lower(), replace(parse_store_url(url), **nowhere)) for url in urls}
    return len(rest) == 1


def _parse_sentinel_url(url: str) -> StoreAddress:
    several, path = _parse_several(url, dict.fromkeys(_SENTINEL_SCHEMES, 26379))
    service, _, database = path.partition("/")
    if not service:
        raise ValueError("the URL must name the service that the Sentinels watch, for example /mymaster/0")
    if database and not _DATABASE.fullmatch(database):
        raise ValueError("after the service the URL must end with a database number, for example /mymaster/0")
    return replace(
        several, database=int(database or 0), sentinels=several.nodes, nodes=(), service=unquote(service)
    )


def _parse_cluster_url(url: str) -> StoreAddress:
    several, path = _parse_several(url, dict.fromkeys(_CLUSTER_SCHEMES, 6379))
    if path not in ("", "0"):
        raise ValueError("the URL must end after its hosts: a Redis Cluster has no other database than 0")
    return several


def _parse_several(url: str, default_ports: dict[str, int]) -> tuple[StoreAddress, str]:
    """Of a URL with several hosts, and its path without the first slash."""
    scheme, _, rest = url.partition("://")
    place, _, path = rest.partition("/")
    who, at, hosts = place.rpartition("@")
    nodes = []
    for one in hosts.split(","):
        parts, port = split_url(f"{scheme}://{one}", default_ports)
        nodes.append((parts.hostname or "", port))
    user, colon, password = who.partition(":")
    address = StoreAddress(
        host=nodes[0][0], port=nodes[0][1], tls=scheme.startswith("rediss"), database=0,
        user=unquote(user) if user else None, password=unquote(password) if at and colon else None,
        nodes=tuple(nodes),
    )  # fmt: skip
    return address, path


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:8642` or `[::1]:8642`. Raises ValueError."""
    found = re.fullmatch(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})", text)
    if found is None or int(found["port"]) > PORT_MAX:
        raise ValueError("must be host:port, for example 127.0.0.1:8642 (port 0 picks a free one)")
    return found["v6"] or found["host"], int(found["port"])


def split_url(url: str, default_ports: dict[str, int]) -> tuple[SplitResult, int]:
    """The parts of a URL, and its port. Raises ValueError."""
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
