"""A link on aio-pika: plain connections, no "robust" ones, which hide that everything was lost."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import quote

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aiormq.abc import AbstractChannel as Underlay
from aiormq.connection import TransportFactory
from aiormq.exceptions import (
    AuthenticationError,
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    ConnectionNotAllowed,
    DeliveryError,
    ProbableAuthenticationError,
    PublishError,
)
from pamqp.commands import Basic
from yarl import URL

from dispatcher.addresses import connect_to_any
from dispatcher.alarm import Timer
from dispatcher.client.library_logs import mark_as_ours
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

#: A heartbeat frame of the broker. aiormq ends a connection that shows no frame for a while, and the broker
#: sends no heartbeats while it sends deliveries, which aiormq does not see.
_HEARTBEAT_FRAME = bytes([8, 0, 0, 0, 0, 0, 0, 0xCE])


class AioLoop:
    """The running asyncio loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_ms / 1000, callback)


class _TappedReader(asyncio.StreamReader):
    """What aiormq reads: the stream without the deliveries."""

    def __init__(self, tap: DeliveryTap, tapped: Callable[[list[TappedDelivery]], None]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._tap = tap
        self._tapped = tapped

    def feed_data(self, data: Any) -> None:
        rest, deliveries = self._tap.feed(data)
        super().feed_data(rest or _HEARTBEAT_FRAME if deliveries else rest)
        if deliveries:
            self._tapped(deliveries)


class _TappedTransport(TransportFactory):
    def __init__(
        self, endpoint: Endpoint, tap: DeliveryTap, tapped: Callable[[list[TappedDelivery]], None]
    ) -> None:
        self._endpoint = endpoint
        self._tap = tap
        self._tapped = tapped

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        endpoint = self._endpoint
        reader = _TappedReader(self._tap, self._tapped)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport = await connect_to_any(
            lambda: protocol, endpoint.address.host, endpoint.address.port,
            context=endpoint.context, server_name=endpoint.server_name,
        )  # fmt: skip
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class _RawProperties(Basic.Properties):
    """Properties that are on the wire exactly the bytes that were written for them."""

    def __init__(self, message_id: str, raw: bytes) -> None:
        super().__init__(message_id=message_id)
        self._raw = raw

    def marshal(self) -> bytes:
        return self._raw


class AioLink:
    """See Link. Every method is called in the event loop."""

    def __init__(self, endpoint: Endpoint, receiver: Receiver) -> None:
        self._nodes = NodesInTurn(endpoint)
        self._endpoint = endpoint  # of the present connection, or of the latest attempt
        self._receiver = receiver
        self._connection: aio_pika.Connection | None = None
        self._channel: AbstractChannel | None = None
        self._underlay: Underlay | None = None
        self._consumer_tag = ""
        self._tap = DeliveryTap()  # the present connection's
        self._queues = 0
        self._opening: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references

    # --- orders ---------------------------------------------------------------------------------------

    def open(self, exchange: str | None) -> None:
        if self._opening is None:
            self._opening = self._start(self._open(exchange))

    def publish(self, publication: Publication) -> None:
        # Tasks start in the order of their creation, and the channel's lock is fair: so the order is kept.
        if self._underlay is not None:
            self._start(self._publish(self._underlay, publication))

    def reset(self, reason: str, code: int) -> None:
        self._start(self._reset(reason, code))

    def close(self) -> None:
        self._start(self._close())

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- opening and closing --------------------------------------------------------------------------

    async def _open(self, exchange: str | None) -> None:
        mark_as_ours()
        replaced = self._consumer_tag
        patience_s = OPEN_TIMEOUT_S
        if self._channel is None:
            self._endpoint, patience_s = self._nodes.next()
        try:
            async with asyncio.timeout(patience_s):
                channel = self._channel or await self._connect()
                queue = await self._open_queue(channel, exchange) if exchange is not None else ""
            if channel is not self._channel:
                raise ConnectionError("it was lost at once")
            self._nodes.opened()
        except Exception as error:  # the libraries raise what they like, RuntimeError among it
            self._opening = None
            code, reason = self._tap.closed_by_broker or described(error)
            await self._reset(f"no connection to {self._endpoint}: {reason}", code)
            return
        self._opening = None
        self._receiver.opened(queue)
        if replaced and self._underlay is not None:
            with contextlib.suppress(Exception):  # a lost connection is reported by its callback
                await self._underlay.basic_cancel(replaced)

    async def _connect(self) -> AbstractChannel:
        self._tap = DeliveryTap()
        connection = aio_pika.Connection(_url(self._endpoint), ssl_context=self._endpoint.context)
        connection.kwargs["transport_factory"] = _TappedTransport(self._endpoint, self._tap, self._tapped)
        self._connection = connection
        await connection.connect()
        channel = connection.channel(publisher_confirms=True, on_return_raises=True)
        await channel.initialize()
        underlay = await channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(self._cancelled)
        connection.close_callbacks.add(self._connection_closed)
        channel.close_callbacks.add(self._connection_closed)
        self._channel, self._underlay = channel, underlay
        return channel

    async def _open_queue(self, channel: AbstractChannel, exchange: str) -> str:
        queue = await channel.declare_queue(exclusive=True, auto_delete=True)
        await queue.bind(exchange, routing_key=queue.name)
        self._queues += 1
        self._consumer_tag = f"copies-{self._queues}"  # the tag that counts: nothing comes before the join
        await queue.consume(_never_called, no_ack=True, consumer_tag=self._consumer_tag)
        return queue.name

    async def _reset(self, reason: str, code: int) -> None:
        connection = self._forget_connection()
        self._receiver.lost(reason, code)
        await _close_connection(connection)

    async def _close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        await _close_connection(self._forget_connection())
        others = self._tasks - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=CLOSE_TIMEOUT_S)
        self._receiver.closed()

    def _forget_connection(self) -> aio_pika.Connection | None:
        connection, self._connection = self._connection, None
        self._channel = self._underlay = None
        self._consumer_tag = ""
        return connection

    # --- what happens ---------------------------------------------------------------------------------

    def _tapped(self, deliveries: list[TappedDelivery]) -> None:
        tag = self._consumer_tag.encode()
        current = [delivery for delivery in deliveries if delivery.consumer_tag == tag]
        if current:
            self._receiver.delivered(current)

    def _cancelled(self, frame: Basic.Cancel) -> None:
        if frame.consumer_tag == self._consumer_tag:
            self._consumer_tag = ""
            self._receiver.lost("RabbitMQ cancelled the consumer: its queue was deleted", CANCELLED)

    async def _connection_closed(self, sender: Any, error: BaseException | None = None) -> None:
        if sender is not None and sender in (self._connection, self._channel):
            code, reason = self._tap.closed_by_broker or described(error)
            await self._reset(f"the connection to {self._endpoint} was lost: {reason}", code)

    async def _publish(self, channel: Underlay, publication: Publication) -> None:
        returned: str | None = None
        try:
            await channel.basic_publish(
                publication.body, exchange=publication.exchange, routing_key=publication.routing_key,
                properties=_RawProperties(publication.message_id, publication.properties), mandatory=True,
            )  # fmt: skip
        except PublishError as error:
            returned = str(error.args[0])
        except DeliveryError:
            returned = NACKED
        except Exception:  # the channel is gone: reported as lost, the outcome is unknown
            return
        if channel is not self._underlay:
            return
        if returned is None:
            self._receiver.confirmed(publication.token)
        else:
            self._receiver.returned(publication.token, returned)


async def _never_called(_: AbstractIncomingMessage) -> None:
    """Deliveries leave the stream before aio-pika sees them."""


async def _close_connection(connection: aio_pika.Connection | None) -> None:
    if connection is not None:
        with contextlib.suppress(Exception):  # it may be broken in any way
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await connection.close()


def _url(endpoint: Endpoint) -> URL:
    address = endpoint.address
    host = f"[{address.host}]" if ":" in address.host else address.host
    user, password, vhost, name = (
        quote(part, safe="")
        for part in (address.user, address.password, address.vhost, endpoint.connection_name)
    )
    scheme = "amqps" if endpoint.context else "amqp"
    query = f"heartbeat={AMQP_HEARTBEAT_S}&name={name}"
    return URL(f"{scheme}://{user}:{password}@{host}:{address.port}/{vhost}?{query}")


_CODES: dict[type[BaseException], int] = {
    ssl.SSLCertVerificationError: UNTRUSTED,
    AuthenticationError: 403, ProbableAuthenticationError: 403, ConnectionNotAllowed: 530,
    ChannelAccessRefused: 403, ChannelNotFoundEntity: 404, ChannelPreconditionFailed: 406,
}  # fmt: skip


def described(error: BaseException | None) -> tuple[int, str]:
    """AMQP's reply code (0: none came), and what went wrong, for people."""
    if isinstance(error, TimeoutError):
        return 0, "no answer in time"
    if isinstance(error, asyncio.CancelledError):  # its name is all that it says
        return 0, "it was ended here, without an answer of RabbitMQ"
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), 0)
    return code, error_text(error)
