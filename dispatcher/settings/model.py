"""The settings as the program uses them: frozen models, made by dispatcher.settings.file from a file.

Attributes carry their unit (`reconnect_grace_ms`); the file's keys don't (`reconnect_grace: 5s`) and are
the fields' aliases. Code that makes settings by hand uses the attribute names and plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from pydantic import Field, field_validator

from dispatcher.settings.kinds import Duration, Integer, Text
from dispatcher.settings.lane import SHORT_STRING_BYTES_MAX, LaneSettings, short_string
from dispatcher.settings.parts import Conflict, LedgerSettings, Model, Reload, TraceSettings
from dispatcher.settings.secret import secret_source
from dispatcher.settings.urls import (
    PORT_MAX,
    BrokerAddress,
    StoreAddress,
    differ_in_hosts_only,
    join_store_urls,
    parse_broker_url,
    parse_listen,
    parse_store_url,
)
from dispatcher.wire.protocol import DEFAULT_PREFIX, RESERVED_SEGMENTS, dotted_name_problem
from dispatcher.wire.shards import FINGERPRINT_CHARACTERS

#: More than most machines have cores.
WORKERS_MAX: Final = 64
#: The longest word that the dispatcher puts behind a lane's name, with room for a parking queue's number.
_NAME_TAIL_BYTES: Final = len(".heartbeat")
#: The same of a lane with shards, with a fingerprint.
_SHARDS_TAIL_BYTES: Final = len("@shards.placed.") + FINGERPRINT_CHARACTERS


def _checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    def check(text: str) -> str:
        parse(text)
        return text

    return check


class _Certificates(Model):
    """Files in PEM format; only an amqps:// or rediss:// URL uses them."""

    ca_file: Annotated[str, Text()] | None = Field(
        default=None, description="Trust only certificates signed by these CAs."
    )
    cert_file: Annotated[str, Text()] | None = Field(default=None, description="Client certificate to show.")
    key_file: Annotated[str, Text()] | None = Field(default=None, description="Private key of cert_file.")
    server_name: Annotated[str, Text()] | None = Field(
        default=None, description="Name to expect in the server's certificate, when it is not the URL's host."
    )

    def _tls_conflicts(self, tls: bool) -> list[Conflict]:
        names = ("ca_file", "cert_file", "key_file", "server_name")
        found = [
            Conflict((name, "url"), "needs a URL with TLS (amqps:// or rediss://)")
            for name in names
            if getattr(self, name) is not None and not tls
        ]
        if self.key_file is not None and self.cert_file is None:
            found.append(Conflict(("key_file", "cert_file"), "needs cert_file"))
        return found


class RabbitSettings(_Certificates):
    """Where RabbitMQ is, and how to speak to it."""

    url: Annotated[str, Text(_checked(parse_broker_url))] = Field(
        default="amqp://guest:guest@localhost:5672/", description="amqp[s]://user:password@host:port/vhost"
    )
    urls: tuple[Annotated[str, Text(_checked(parse_broker_url))], ...] | None = Field(
        default=None,
        min_length=1,
        description="Instead of url: nodes of one cluster, which are tried in random order.",
    )
    heartbeat_ms: Annotated[int, Duration(1_000, 600_000)] = Field(
        default=10_000, alias="heartbeat", description="AMQP heartbeat, in whole seconds."
    )

    @property
    def address(self) -> BrokerAddress:
        """Of the first node."""
        return parse_broker_url(self.urls[0] if self.urls else self.url)

    @property
    def url_key(self) -> str:
        """The key that says where RabbitMQ is."""
        return "rabbitmq.urls" if self.urls else "rabbitmq.url"

    def nodes(self) -> list[RabbitSettings]:
        """The same for each node alone, with its `url`; in the order of the file."""
        if not self.urls:
            return [self]
        return [self.model_copy(update={"url": url, "urls": None}) for url in self.urls]

    @field_validator("heartbeat_ms")
    @classmethod
    def _whole_seconds(cls, value: int) -> int:
        if value % 1_000:
            raise ValueError("must be whole seconds: AMQP can't say less")
        return value

    def conflicts(self) -> list[Conflict]:
        """What its keys say against each other."""
        found = self._tls_conflicts(self.address.tls)
        found += _two_places(self)
        addresses = [node.address for node in self.nodes()]
        if len({(address.vhost, address.tls) for address in addresses}) > 1:
            text = "all URLs must begin in the same way (amqp:// or amqps://) and name the same vhost"
            found.append(Conflict(("urls",), text))
        return found


class RedisSettings(_Certificates):
    """Where Redis is, and how long to wait for it."""

    url: Annotated[str, Text(_checked(parse_store_url))] = Field(
        default="redis://localhost:6379/0",
        description=(
            "redis[s]://user:password@host:port/database, "
            "or redis[s]+sentinel://user:password@host:port,host:port/service/database, "
            "or redis[s]+cluster://user:password@host:port,host:port"
        ),
    )
    urls: tuple[Annotated[str, Text(_checked(parse_store_url))], ...] | None = Field(
        default=None,
        min_length=1,
        description=(
            "Instead of url: the same URL with each of the Sentinels, of the nodes of a cluster, or of a "
            "master and its replicas."
        ),
    )
    sentinel_user: Annotated[str, Text()] | None = Field(
        default=None, description="Whom to log in to the Sentinels as; null: their default user."
    )
    sentinel_password: Annotated[str, Text(secret_source)] | None = Field(
        default=None, description="Where the Sentinels' password is (file:PATH or env:NAME); null: none."
    )
    timeout_ms: Annotated[int, Duration(10, 60_000)] = Field(
        default=2_000, alias="timeout", description="After this long a commit's outcome counts as unknown."
    )

    @property
    def address(self) -> StoreAddress:
        return join_store_urls(self.urls or (self.url,))

    @property
    def url_key(self) -> str:
        """The key that says where Redis is."""
        return "redis.urls" if self.urls else "redis.url"

    def at(self, host: str, port: int) -> RedisSettings:
        """The same for this server alone."""
        url = self.address.url_of(host, port)
        return self.model_copy(update={"urls": (url,)} if self.urls else {"url": url})

    def conflicts(self) -> list[Conflict]:
        """What its keys say against each other."""
        found = self._tls_conflicts(self.address.tls) + _two_places(self)
        if self.urls and not differ_in_hosts_only(self.urls):
            text = "all URLs must be the same but for host and port: scheme, login, database and service"
            found.append(Conflict(("urls",), text))
        if self.sentinel_password is not None and not self.address.sentinels:
            text = "needs a URL of Sentinels (redis+sentinel:// or rediss+sentinel://)"
            found.append(Conflict(("sentinel_password", "url"), text))
        if self.sentinel_user is not None and self.sentinel_password is None:
            found.append(Conflict(("sentinel_user", "sentinel_password"), "needs sentinel_password"))
        return found


def _two_places(section: RabbitSettings | RedisSettings) -> list[Conflict]:
    if section.urls and "url" in section.model_fields_set:
        return [Conflict(("urls", "url"), "takes the place of url: give one of them")]
    return []


class TokenSettings(Model):
    """Where the tokens of the HTTP server are, as `file:PATH` or `env:NAME`."""

    viewer: Annotated[str, Text(secret_source)] | None = Field(
        default=None, description="With this token one may read; null: everybody may."
    )
    operator: Annotated[str, Text(secret_source)] | None = Field(
        default=None, description="With this token one may also act; null: nobody may."
    )


class HttpSettings(Model):
    """Where health, metrics and the page for people are served, and to whom."""

    listen: Annotated[str, Text(_checked(parse_listen))] = Field(
        default="127.0.0.1:8642", description="host:port; port 0 picks a free one and logs it."
    )
    tokens: TokenSettings = Field(default=TokenSettings(), description="Who may read, and who may act.")
    cert_file: Annotated[str, Text()] | None = Field(
        default=None, description="Serve TLS with this certificate (PEM, with its chain); null: plain HTTP."
    )
    key_file: Annotated[str, Text()] | None = Field(
        default=None, description="Private key of cert_file; null: it is in the same file."
    )
    ca_file: Annotated[str, Text()] | None = Field(
        default=None, description="Take only clients with a certificate signed by these CAs."
    )

    def conflicts(self) -> list[Conflict]:
        """What its keys say against each other."""
        return [
            Conflict((name, "cert_file"), "needs cert_file")
            for name in ("key_file", "ca_file")
            if getattr(self, name) is not None and self.cert_file is None
        ]

    @property
    def host(self) -> str:
        return parse_listen(self.listen)[0]

    @property
    def port(self) -> int:
        return parse_listen(self.listen)[1]


class Settings(Model):
    """Everything that the file says."""

    rabbitmq: Annotated[RabbitSettings, Reload.RESTART] = RabbitSettings()
    redis: Annotated[RedisSettings, Reload.RESTART] = RedisSettings()
    http: Annotated[HttpSettings, Reload.RESTART] = HttpSettings()
    ledger: Annotated[LedgerSettings | None, Reload.RESTART] = Field(
        default=None, description="Record every decision in Parquet files; null: none."
    )
    traces: Annotated[TraceSettings | None, Reload.RESTART] = Field(
        default=None, description="A span for each message, sent by OTLP; null: none."
    )
    prefix: Annotated[str, Text(short_string), Reload.RESTART] = Field(
        default=DEFAULT_PREFIX,
        description="First word of all names that the dispatcher uses on the broker and in Redis.",
    )
    spread_lanes: Annotated[bool, Reload.RESTART] = Field(
        default=True,
        description="Give a lane to a replica that leads two lanes fewer; false: stay its leader.",
    )
    workers: Annotated[int, Integer(1, WORKERS_MAX), Reload.RESTART] = Field(
        default=1, description="Processes that share the lanes, each with the next port of http.listen."
    )
    lanes: dict[str, LaneSettings] = Field(min_length=1, description="The lanes by name.")

    def conflicts(self) -> list[Conflict]:
        """What its keys say against each other."""
        found = []
        if self.workers > 1 and not self.spread_lanes:
            text = "needs spread_lanes: true, or one of them may lead all lanes for good"
            found.append(Conflict(("workers", "spread_lanes"), text))
        if self.http.port and self.http.port + self.workers > PORT_MAX + 1:
            text = f"the last one would listen on a port above {PORT_MAX} (http.listen)"
            found.append(Conflict(("workers", "http"), text))
        return found


def lane_name_problem(name: str, prefix: str, shards: int = 1) -> str | None:
    """The problem with a lane's name, or None."""
    if problem := dotted_name_problem(name, reserved=RESERVED_SEGMENTS):
        return f"the name {problem}"
    tail = _NAME_TAIL_BYTES if shards == 1 else _SHARDS_TAIL_BYTES
    if len(prefix) + 1 + len(name) + tail > SHORT_STRING_BYTES_MAX:
        return f"the name is too long: queue names have at most {SHORT_STRING_BYTES_MAX} bytes"
    return None
