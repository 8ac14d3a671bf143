"""What the engines need of a connection and of an event loop; one pair on aio-pika, one on pika."""

from __future__ import annotations

import os
import random
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from dispatcher.alarm import Timer
from dispatcher.client.tap import TappedDelivery
from dispatcher.errors import ConfigurationError
from dispatcher.settings.urls import BrokerAddress, parse_broker_url

#: A frozen peer or a dead network is noticed within two of these.
AMQP_HEARTBEAT_S: Final = 10
#: From the first packet to the consumer's queue; a broker that takes longer is tried again.
OPEN_TIMEOUT_S: Final = 10
#: So long each of several nodes has at first: one that stands still accepts connections, and never answers.
FIRST_TIMEOUT_S: Final = 3
CLOSE_TIMEOUT_S: Final = 5
#: Not AMQP's: the server's certificate is not trusted, or not for its name.
UNTRUSTED: Final = -1
#: Not AMQP's: the server cancelled the consumer.
CANCELLED: Final = -2
#: Not AMQP's: the connection was given up because the broker did not take a message that has to arrive.
NOT_TAKEN: Final = -3
#: Codes of what stays refused until somebody changes something: access refused, not allowed (the vhost).
REFUSAL_CODES: Final = frozenset({403, 530, UNTRUSTED})
#: A nacked publish has no code of its own.
NACKED: Final = "the broker refused it (basic.nack)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Certificates for an amqps:// URL, as paths of PEM files.

    Without `ca_file` the system's authorities are trusted. `server_name` is the name that the server's
    certificate must have, if it isn't the URL's host.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """Raises ConfigurationError for files that can't be read."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"tls: the certificates can't be loaded: {error}") from None
        return context


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect to, and under which name."""

    address: BrokerAddress
    context: ssl.SSLContext | None
    server_name: str | None
    connection_name: str
    others: tuple[Endpoint, ...] = ()  # other nodes of the same cluster

    @classmethod
    def of(cls, url: str | Sequence[str], tls: Tls | None, connection_name: str) -> Endpoint:
        """`url`: of one node, or of several of one cluster. Raises ConfigurationError, which doesn't quote
        the URL: it may hold a password."""
        urls = [url] if isinstance(url, str) else list(url)
        if not urls:
            raise ConfigurationError("url: names no node")
        first, *others = (cls._of_one(url, tls, connection_name) for url in urls)
        if len({node.address.vhost for node in (first, *others)}) > 1:
            raise ConfigurationError("url: all must name the same vhost")
        return replace(first, others=tuple(others))

    @classmethod
    def _of_one(cls, url: str, tls: Tls | None, connection_name: str) -> Endpoint:
        try:
            address = parse_broker_url(url)
        except ValueError as error:
            raise ConfigurationError(f"url: {error}") from None
        if tls is not None and not address.tls:
            raise ConfigurationError("tls: is given, so the url must begin with amqps://")
        context = (tls or Tls()).context() if address.tls else None
        server_name = (tls.server_name if tls else None) or address.host
        return cls(address, context, server_name if context else None, connection_name)

    def __str__(self) -> str:
        return f"{self.address.host}:{self.address.port} (vhost {self.address.vhost})"


class NodesInTurn:
    """An endpoint and the other nodes of its cluster, in a random order, again and again."""

    def __init__(self, endpoint: Endpoint) -> None:
        nodes = (endpoint, *endpoint.others)
        self._nodes = random.sample(nodes, len(nodes))
        self._tried = 0  # since a node was opened
        self._at = -1

    def next(self) -> tuple[Endpoint, int]:
        """The node to try now, and how many seconds it has. When none of several has let us in within
        three seconds, each has the whole time, and so on."""
        self._at = (self._at + 1) % len(self._nodes)
        is_first = len(self._nodes) > 1 and self._tried // len(self._nodes) % 2 == 0
        self._tried += 1
        return self._nodes[self._at], FIRST_TIMEOUT_S if is_first else OPEN_TIMEOUT_S

    def opened(self) -> None:
        """The latest one has let us in."""
        self._tried = 0


def error_text(error: BaseException | None) -> str:
    """What went wrong, in words: libraries put errno and fragments into the arguments."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    words = " ".join(str(argument) for argument in error.args) if error is not None else ""
    return words or type(error).__name__


class Publication(NamedTuple):
    """One message to publish, mandatory and confirmed. `message_id` is also among the properties, and no
    other unconfirmed message of the connection has it: returns are told apart by it."""

    token: int
    exchange: str
    routing_key: str
    message_id: str
    properties: bytes
    body: bytes


class Receiver(Protocol):
    """What a link reports; never from within a call to the link."""

    def opened(self, queue: str) -> None:
        """Connected; `queue` is the new queue, empty if none was asked for."""

    def lost(self, reason: str, code: int) -> None:
        """The connection ended or could not be made.

        `code` is the kind of the loss: AMQP's reply code, one of those above, or 0 without any.
        """

    def delivered(self, deliveries: list[TappedDelivery]) -> None:
        """Messages that came in the newest queue."""

    def confirmed(self, token: int) -> None:
        """The broker has the message."""

    def returned(self, token: int, reason: str) -> None:
        """The broker has it not: no queue took it, or it was nacked."""

    def closed(self) -> None:
        """The answer to `close`, always the last report."""


class ClientLink(Protocol):
    """One connection after another, each with one channel, publisher confirms on."""

    def open(self, exchange: str | None) -> None:
        """Connect if there is no connection; with `exchange` make a new queue, bound to it by its name.

        An older queue is dropped once `opened` has returned: what that published goes first.
        """

    def publish(self, publication: Publication) -> None:
        """In the order of the calls. Nothing happens without a connection: `lost` was or will be reported."""

    def reset(self, reason: str, code: int) -> None:
        """End the connection and report it as lost."""

    def close(self) -> None:
        """End everything; answered by `closed`."""


class Loop(Protocol):
    """The event loop that a link and its receiver run in."""

    def now_ms(self) -> int: ...

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer: ...


MakeLink = Callable[[Receiver], ClientLink]
