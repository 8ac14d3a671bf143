"""A blocking connection to RabbitMQ for one command, and plain words for what can go wrong with it."""

from __future__ import annotations

import contextlib
import logging
import random
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.credentials import ExternalCredentials, PlainCredentials
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    ConnectionBlockedTimeout,
    IncompatibleProtocolError,
    NackError,
    StreamLostError,
    UnroutableError,
)

from dispatcher.addresses import in_random_order
from dispatcher.amqp.tls import login, tls_context
from dispatcher.errors import BrokerUnavailable, ChannelRefused, is_missing
from dispatcher.settings import RabbitSettings

#: Below this a slow handshake over TLS is taken for an outage.
_HANDSHAKE_TIMEOUT_S: Final = 5.0
#: The text that the broker gave, inside pika's rendering of its own exception.
_BROKERS_WORDS: Final = re.compile(r"ConnectionClosedByBroker: \((\d+)\) ['\"](.*)['\"]", re.DOTALL)

#: It listens, but its answer to our greeting is silence, something else, or the end.
_NOT_AMQP: Final = (AMQPConnectorException, IncompatibleProtocolError, StreamLostError)


class OperatorConnection(BlockingConnection):  # type: ignore[misc]  # pika has no types
    """A connection that knows its user; None: RabbitMQ knows it by a certificate or token."""

    user: str | None = None

    @property
    def broker(self) -> tuple[str, str | None]:
        """Its version, and the name of its cluster if it says one."""
        said = self._impl.server_properties
        return str(said.get("version", "")), said.get("cluster_name")


@contextlib.contextmanager
def connected(settings: RabbitSettings, purpose: str) -> Iterator[OperatorConnection]:
    """A connection for the body, to any of the nodes; it is closed afterwards, whatever happened.

    Raises BrokerUnavailable when it can't be made, and when it ends inside the body; ConfigurationError
    when a certificate can't be used.
    """
    # pika logs what it raises; the user is told once.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    nodes, problems = settings.nodes(), list[str]()
    for node in random.sample(nodes, len(nodes)):
        where = f"RabbitMQ at {node.address.host}:{node.address.port}"
        try:
            connection = _connect_to_any(node, purpose)
            connection.user = login(node, purpose).user
            break
        except (AMQPError, AMQPConnectorException, OSError, UnicodeError) as error:
            problems.append(f"{where}: {_reason(node, error, settings.url_key)}")
    else:
        raise BrokerUnavailable("; ".join(sorted(problems))) from None
    try:
        yield connection
    except ConnectionBlockedTimeout:
        raise BrokerUnavailable(f"{where} blocks publishers: it is short of memory or disk") from None
    except AMQPError as error:
        raise BrokerUnavailable(f"{where} ended the connection: {_words(error)}") from None
    finally:
        with contextlib.suppress(AMQPError):
            connection.close()


def _connect_to_any(node: RabbitSettings, purpose: str) -> OperatorConnection:
    """As dispatcher.addresses.connect_to_any, and raises what pika does, too."""
    address = node.address
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    failures: list[Exception] = []
    for place in in_random_order(found, address.host):
        try:
            return OperatorConnection(_parameters(node, place, purpose))
        except (AMQPError, AMQPConnectorException, OSError) as failure:
            failures.append(failure)
    raise max(failures, key=lambda failure: isinstance(failure, ssl.SSLError))


class QueueLook(NamedTuple):
    """What RabbitMQ says about a queue."""

    refused: str | None  # why it can't be looked at
    missing: bool
    ready: int | None  # messages that wait in it; None: it can't be looked at
    consumers: int


def look_at_queue(connection: BlockingConnection, queue: str) -> QueueLook:
    """How full it is, and how many read it. Changes nothing."""
    answers: list[tuple[int, int]] = []

    def declare(channel: BlockingChannel) -> None:
        method = channel.queue_declare(queue, passive=True).method
        answers.append((method.message_count, method.consumer_count))

    error = refusal(connection, declare)
    if error is not None:
        refused = ChannelRefused(error.reply_code, error.reply_text)
        return QueueLook(error.reply_text, is_missing(refused), None, 0)
    return QueueLook(None, False, *answers[0])


def refusal(
    connection: BlockingConnection, action: Callable[[BlockingChannel], object]
) -> ChannelClosedByBroker | None:
    """Do this on a channel of its own: the error that RabbitMQ closed the channel with, or None."""
    channel = connection.channel()
    try:
        action(channel)
    except ChannelClosedByBroker as error:
        return error
    except (UnroutableError, NackError):
        pass  # the publish was allowed, and no queue took the message
    channel.close()
    return None


def _parameters(settings: RabbitSettings, place: str, purpose: str) -> pika.ConnectionParameters:
    """`place`: one of the addresses of the host."""
    address, who, context = settings.address, login(settings, purpose), tls_context(settings)
    return pika.ConnectionParameters(
        host=place,
        port=address.port,
        virtual_host=address.vhost,
        credentials=ExternalCredentials() if who.user is None else PlainCredentials(who.user, who.password),
        ssl_options=pika.SSLOptions(context, settings.server_name or address.host) if context else None,
        heartbeat=settings.heartbeat_ms // 1_000,
        connection_attempts=1,
        socket_timeout=_HANDSHAKE_TIMEOUT_S,
        stack_timeout=_HANDSHAKE_TIMEOUT_S,
        blocked_connection_timeout=_HANDSHAKE_TIMEOUT_S,
        client_properties={"connection_name": f"dispatcher {purpose}"},
    )


def user_text(settings: RabbitSettings) -> str:
    """Whom RabbitMQ takes us for, in a sentence."""
    user = login(settings, "").user
    return f"user {user!r}" if user is not None else "the user of the client certificate"


def _reason(settings: RabbitSettings, error: Exception, url_key: str) -> str:
    address, user = settings.address, user_text(settings)
    broker = _BROKERS_WORDS.search(str(error))
    if broker and broker[1] == "403":
        return f"{user} is refused (wrong user or password in {url_key})"
    if broker:
        return f"{user} can't use vhost {address.vhost!r}: {broker[2]}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}); see rabbitmq.ca_file and server_name"
        )
    if isinstance(error, ssl.SSLError):
        return f"does not answer in TLS ({error.reason or error})"
    if isinstance(error, _NOT_AMQP):
        hint = "" if address.tls else " (does it expect TLS? then the URL must begin with amqps://)"
        return f"does not answer in AMQP{hint}"
    return f"can't be reached ({_cause(error)})"


def _cause(error: BaseException) -> str:
    """The operating system's words at the bottom of pika's wrappers."""
    seen: list[BaseException] = [error]
    while seen:
        current = seen.pop()
        if isinstance(current, OSError):
            return current.strerror or str(current)
        seen.extend(arg for arg in current.args if isinstance(arg, BaseException))
        inner = getattr(current, "exception", None)
        if isinstance(inner, BaseException):
            seen.append(inner)
    return str(error) or type(error).__name__


def _words(error: AMQPError) -> str:
    return " ".join(str(error).split()) or type(error).__name__
