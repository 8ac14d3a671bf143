"""A link on pika's callback connection, inside an IoThread."""

from __future__ import annotations

import contextlib
import random
import re
import ssl
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import Any, Final

import pika
from pika import exceptions
from pika.adapters.select_connection import SelectorIOServicesAdapter
from pika.spec import Basic

from dispatcher.alarm import Timer
from dispatcher.client.io_thread import IoThread
from dispatcher.client.links import (
    AMQP_HEARTBEAT_S,
    CANCELLED,
    CLOSE_TIMEOUT_S,
    NACKED,
    OPEN_TIMEOUT_S,
    UNTRUSTED,
    Endpoint,
    NodesInTurn,
    Publication,
    Receiver,
    error_text,
)
from dispatcher.client.tap import DeliveryTap, TappedDelivery


class _TappedConnection(pika.SelectConnection):  # type: ignore[misc]  # pika publishes no types
    """Sees everything but deliveries, which go to `tapped`."""

    def __init__(self, tapped: Callable[[list[TappedDelivery]], None], *args: Any, **kwargs: Any) -> None:
        self._tap = DeliveryTap()
        self._tapped = tapped
        super().__init__(*args, **kwargs)

    def _on_data_available(self, data_in: bytes) -> None:
        rest, deliveries = self._tap.feed(data_in)
        self.bytes_received += len(data_in) - len(rest)  # pika ends a connection that receives nothing
        if rest:
            super()._on_data_available(rest)
        if deliveries:
            self._tapped(deliveries)

    def _on_connection_workflow_done(self, conn_or_exc: Any) -> None:
        # When its handshake was given up pika reports the class of an exception, and fails over that.
        super()._on_connection_workflow_done(conn_or_exc() if isinstance(conn_or_exc, type) else conn_or_exc)


class AnyAddress(SelectorIOServicesAdapter):  # type: ignore[misc]
    """The addresses of a name come in random order, see dispatcher.addresses."""

    def getaddrinfo(self, host: str, port: int, on_done: Callable[[Any], None], **options: Any) -> Any:
        def found(places: Any) -> None:
            failed = isinstance(places, BaseException)
            on_done(places if failed else random.sample(places, len(places)))

        return super().getaddrinfo(host, port, found, **options)


class _RawProperties:
    """Properties that are on the wire exactly the bytes that were written for them."""

    INDEX = pika.BasicProperties.INDEX

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def encode(self) -> list[bytes]:
        return [self._raw]


class PikaLink:
    """See Link. Every method is called in the I/O thread."""

    services_type = AnyAddress  # all that a test replaces

    def __init__(self, endpoint: Endpoint, receiver: Receiver, io: IoThread) -> None:
        self._nodes = NodesInTurn(endpoint)
        self._endpoint = endpoint  # of the present connection, or of the latest attempt
        self._receiver = receiver
        self._io = io
        self._connection: Any = None
        self._channel: Any = None  # once it is open, with confirms on
        self._exchange: str | None = None
        self._opening: Timer | None = None  # ends an opening that takes too long
        self._consumer_tag = ""
        self._replaced_tag = ""
        self._queues = 0
        self._published = 0
        self._unconfirmed: dict[int, Publication] = {}  # by the channel's publish number
        self._returned: dict[str, str] = {}  # message id → reason; the confirm follows
        self._closing: set[Any] = set()  # connections that were given up and are not closed yet
        self._close_timer: Timer | None = None  # there is one from `close` to `closed`

    # --- orders ---------------------------------------------------------------------------------------

    def open(self, exchange: str | None) -> None:
        if self._opening is not None:
            return
        self._exchange = exchange
        patience_s = OPEN_TIMEOUT_S
        if self._channel is None:
            self._endpoint, patience_s = self._nodes.next()
        self._opening = self._io.call_later(1000 * patience_s, self._opened_too_late)
        if self._channel is not None:
            self._declare(self._channel)
        else:
            self._connection = _TappedConnection(
                self._tapped, _parameters(self._endpoint), on_open_callback=self._connected,
                on_open_error_callback=self._connection_closed, on_close_callback=self._connection_closed,
                custom_ioloop=self.services_type(self._io.ioloop),
            )  # fmt: skip

    def publish(self, publication: Publication) -> None:
        if self._channel is None or not self._channel.is_open:
            return
        self._published += 1
        self._unconfirmed[self._published] = publication
        self._channel.basic_publish(
            publication.exchange, publication.routing_key, publication.body,
            _RawProperties(publication.properties), mandatory=True,
        )  # fmt: skip

    def reset(self, reason: str, code: int) -> None:
        self._io.call_soon(lambda: self._reset(reason, code))

    def close(self) -> None:
        self._io.call_soon(self._close)

    # --- opening: each step is the callback of the one before, unless the connection was given up -----

    def _connected(self, connection: Any) -> None:
        if connection is self._connection:
            connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Any) -> None:
        if channel.connection is not self._connection:
            return
        self._published = 0
        self._channel = channel
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_cancel_callback(self._cancelled)
        channel.add_on_return_callback(self._came_back)
        channel.confirm_delivery(partial(self._answered, channel), callback=lambda _: self._declare(channel))

    def _declare(self, channel: Any) -> None:
        if channel is not self._channel:
            return
        if self._exchange is None:
            self._ready(channel, "")
        else:
            channel.queue_declare("", exclusive=True, auto_delete=True, callback=partial(self._bind, channel))

    def _bind(self, channel: Any, declared: Any) -> None:
        if channel is self._channel:
            queue = declared.method.queue
            consume = partial(self._consume, channel, queue)
            channel.queue_bind(queue, self._exchange, routing_key=queue, callback=consume)

    def _consume(self, channel: Any, queue: str, _bound: Any) -> None:
        if channel is self._channel:
            self._queues += 1
            self._replaced_tag, self._consumer_tag = self._consumer_tag, f"copies-{self._queues}"
            channel.basic_consume(
                queue, _never_called, auto_ack=True, consumer_tag=self._consumer_tag,
                callback=lambda _: self._ready(channel, queue),
            )  # fmt: skip

    def _ready(self, channel: Any, queue: str) -> None:
        if channel is not self._channel:
            return
        self._opening_over()
        self._nodes.opened()
        replaced, self._replaced_tag = self._replaced_tag, ""
        self._receiver.opened(queue)
        if replaced and channel.is_open:
            channel.basic_cancel(replaced, callback=lambda _: None)

    def _opened_too_late(self) -> None:
        self._reset(f"no connection to {self._endpoint}: no answer in time", 0)

    def _opening_over(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

    # --- what happens ---------------------------------------------------------------------------------

    def _tapped(self, deliveries: list[TappedDelivery]) -> None:
        tag = self._consumer_tag.encode()
        current = [delivery for delivery in deliveries if delivery.consumer_tag == tag]
        if current:
            self._receiver.delivered(current)

    def _cancelled(self, frame: Any) -> None:
        if frame.method.consumer_tag == self._consumer_tag:
            self._consumer_tag = ""
            self._receiver.lost("RabbitMQ cancelled the consumer: its queue was deleted", CANCELLED)

    def _came_back(self, channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        if channel is self._channel:
            self._returned[properties.message_id] = method.reply_text

    def _answered(self, channel: Any, frame: Any) -> None:
        if channel is not self._channel:
            return
        method = frame.method
        last = method.delivery_tag
        several = takewhile(lambda number: number <= last, self._unconfirmed)
        for number in list(several) if method.multiple else [last]:
            publication = self._unconfirmed.pop(number, None)
            if publication is None:
                continue
            reason = self._returned.pop(publication.message_id, None)
            if isinstance(method, Basic.Nack):
                reason = NACKED
            if reason is None:
                self._receiver.confirmed(publication.token)
            else:
                self._receiver.returned(publication.token, reason)

    def _channel_closed(self, channel: Any, error: BaseException) -> None:
        if channel is self._channel:
            self._lost(error)

    def _connection_closed(self, connection: Any, error: BaseException) -> None:
        if connection in self._closing:
            self._closing.discard(connection)
            self._close_if_done()
        elif connection is self._connection:
            self._lost(error)

    def _lost(self, error: BaseException) -> None:
        code, reason = described(error)
        what = "no connection to" if self._opening is not None else "the connection was lost to"
        self._reset(f"{what} {self._endpoint}: {reason}", code)

    # --- closing --------------------------------------------------------------------------------------

    def _reset(self, reason: str, code: int) -> None:
        self._give_up_connection()
        self._receiver.lost(reason, code)

    def _give_up_connection(self) -> None:
        self._opening_over()
        connection, self._connection, self._channel = self._connection, None, None
        self._consumer_tag = self._replaced_tag = ""
        self._unconfirmed.clear()
        self._returned.clear()
        if connection is not None and not connection.is_closed:
            self._closing.add(connection)
            with contextlib.suppress(exceptions.AMQPError):  # closing already
                connection.close()

    def _close(self) -> None:
        self._close_timer = self._io.call_later(1000 * CLOSE_TIMEOUT_S, self._closed)
        self._give_up_connection()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._close_timer is not None and not self._closing:
            self._close_timer.cancel()
            self._closed()

    def _closed(self) -> None:
        self._close_timer = None
        self._receiver.closed()


def _never_called(*_: Any) -> None:
    """Deliveries leave the stream before pika sees them."""


def _parameters(endpoint: Endpoint) -> Any:
    address = endpoint.address
    ssl_options = pika.SSLOptions(endpoint.context, endpoint.server_name) if endpoint.context else None
    return pika.ConnectionParameters(
        host=address.host, port=address.port, virtual_host=address.vhost,
        credentials=pika.PlainCredentials(address.user, address.password),
        heartbeat=AMQP_HEARTBEAT_S, ssl_options=ssl_options, stack_timeout=OPEN_TIMEOUT_S,
        client_properties={"connection_name": endpoint.connection_name},
    )  # fmt: skip


def described(error: BaseException) -> tuple[int, str]:
    """AMQP's reply code (0: none came), and what went wrong, for people."""
    error = _innermost(error)
    if isinstance(error, exceptions.ConnectionClosed | exceptions.ChannelClosed):
        return error.reply_code, error.reply_text
    if isinstance(error, _GUESSES):
        # RabbitMQ always says why it refuses; a node that ends says another word, or none. What is not of
        # this form counts as a lost connection, and is tried again.
        said = _SAID.match(str(next(iter(error.args), "")))
        return (int(said[1]), said[2]) if said else (0, error_text(error))
    return (UNTRUSTED if isinstance(error, ssl.SSLCertVerificationError) else 0), error_text(error)


def _innermost(error: BaseException) -> BaseException:
    """pika wraps what happened in up to three layers of its own, each in another way."""
    several = getattr(error, "exceptions", None)
    inner = several[-1] if several else getattr(error, "exception", None) or next(iter(error.args), None)
    return _innermost(inner) if isinstance(inner, BaseException) else error


#: What pika takes any end of a connection for that was not open yet, by how far it was.
_GUESSES: Final = (exceptions.ProbableAuthenticationError, exceptions.ProbableAccessDeniedError)
#: What it keeps of the reason: so it writes what RabbitMQ said.
_SAID: Final = re.compile(r"ConnectionClosedByBroker: \((\d+)\) '?(.*?)'?$", re.DOTALL)
