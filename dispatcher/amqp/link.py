"""A connection to RabbitMQ on asyncio: `Connection` with a socket, a clock and futures.

Events are reported synchronously, all of one read at once. All bytes written in one iteration of the event
loop leave in one piece at its end, or at `flush()`.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self, cast

from pamqp import base

from dispatcher.addresses import connect_to_any
from dispatcher.amqp.connection import CODE_FRAME_ERROR, Connection, ConnectionState
from dispatcher.amqp.events import ConnectionClosed, ConnectionEvent, Fetched
from dispatcher.amqp.tls import login, tls_context
from dispatcher.amqp.wire import content_frames, publish_frame
from dispatcher.errors import ACCESS_REFUSED, BrokerUnavailable, LoginRefused, ProtocolViolation

if TYPE_CHECKING:
    from dispatcher.settings import RabbitSettings

#: From the first SYN to the open vhost. RabbitMQ's own handshake timeout.
OPEN_TIMEOUT_S: Final = 10.0
#: So long each of several nodes has at first: one that stands still accepts connections, and never answers.
FIRST_TIMEOUT_S: Final = 3.0
#: What a connection fails with if there is somebody to refuse it: a node that stands still refuses nothing.
_REFUSALS: Final = (ConnectionError, ssl.SSLError)
#: How long a broker may take to answer our goodbye; after that the socket is closed without it.
CLOSE_TIMEOUT_S: Final = 2.0
_NOT_ALLOWED: Final = 530


class Link(asyncio.Protocol):
    """An open connection. Made by `Link.open`.

    `on_events` gets every event in the order of the wire, ConnectionClosed last and exactly once. It must
    not raise. Channels, tags and futures end with the connection: nothing is reconnected here.
    """

    def __init__(
        self, connection: Connection, where: str, on_events: Callable[[list[ConnectionEvent]], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._connection = connection
        self._where = where
        self._on_events = on_events
        self._transport: asyncio.Transport | None = None
        self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._opened: asyncio.Future[None] = loop.create_future()
        self._lost = asyncio.Event()
        self.url = ""  # of the node
        #: Done when the connection has ended, with the event that says why; never fails.
        self.closed: asyncio.Future[ConnectionClosed] = loop.create_future()

    @classmethod
    async def open(
        cls,
        settings: RabbitSettings,
        *,
        name: str,
        on_events: Callable[[list[ConnectionEvent]], None],
        timeout_s: float = OPEN_TIMEOUT_S,
        last: str = "",
    ) -> Self:
        """Connect, log in and open the vhost; `name` is how the broker lists this connection. Of several
        nodes it is the first, in random order, that lets us in. Each has three seconds; if none did, those
        that did not answer have `timeout_s`. The one with the URL `last` is tried after the others: it may be
        frozen, which costs that time.

        Raises BrokerUnavailable (LoginRefused when the broker wants other credentials or another vhost),
        or ConfigurationError for a certificate file that can't be used. Then `on_events` was never called.
        """
        nodes = settings.nodes()
        nodes = sorted(random.sample(nodes, len(nodes)), key=lambda node: node.url == last)
        failures = dict[str, BrokerUnavailable]()
        for patience_s in (min(FIRST_TIMEOUT_S, timeout_s), timeout_s) if len(nodes) > 1 else (timeout_s,):
            silent = []
            for node in nodes:
                try:
                    return await cls._open(node, name, on_events, patience_s)
                except BrokerUnavailable as failure:
                    failures[node.url] = failure
                    if isinstance(failure.__context__, TimeoutError):
                        silent.append(node)
            nodes = silent
        texts = list(failures.values())
        if len(texts) == 1 or all(isinstance(failure, LoginRefused) for failure in texts):
            raise texts[0]
        raise BrokerUnavailable("; ".join(sorted(map(str, texts))))

    @classmethod
    async def _open(
        cls,
        settings: RabbitSettings,
        name: str,
        on_events: Callable[[list[ConnectionEvent]], None],
        timeout_s: float,
    ) -> Self:
        address, context = settings.address, tls_context(settings)
        where = f"RabbitMQ at {address.host}:{address.port}"
        loop = asyncio.get_running_loop()
        link = cls(Connection(login(settings, name), _now_ms(loop)), where, on_events)
        link.url = settings.url
        server_name = (settings.server_name or address.host) if context else None
        try:
            async with asyncio.timeout(timeout_s):
                await connect_to_any(
                    lambda: link, address.host, address.port, context=context, server_name=server_name
                )
                await link._opened
        except TimeoutError:
            link.abort()
            raise BrokerUnavailable(f"{where} did not answer within {timeout_s:g} s") from None
        except OSError as problem:
            raise BrokerUnavailable(f"{where} can't be reached: {_why(problem)}") from None
        except BaseException:
            link.abort()
            raise
        return link

    # --- what the service calls ---------------------------------------------------------------------

    @property
    def frame_max(self) -> int:
        """Bytes of the largest frame that the broker takes."""
        return self._connection.frame_max

    @property
    def blocked(self) -> str | None:
        """Why the broker reads nothing from us now, None when it does."""
        return self._connection.blocked

    @property
    def server_properties(self) -> dict[str, Any]:
        """What the broker says about itself: product, version, capabilities …"""
        return self._connection.handshake.server_properties

    async def open_channel(self) -> int:
        """A new channel. Raises BrokerUnavailable."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        channel = self._connection.open_channel(answer)
        self._schedule_flush()
        await answer
        return channel

    def call(self, channel: int, method: base.Frame) -> asyncio.Future[Any]:
        """Send a method now, and have the broker's answer as the future's result.

        The order with publishes and acks on the channel is the order of the calls; several calls may
        wait at once. Events that follow the answer in the same read are reported before the code that
        awaits the future runs. basic.get answers Fetched or Basic.GetEmpty; after channel.close nothing more
        is reported of that channel.

        The future fails with ChannelRefused when the broker closes the channel, with BrokerUnavailable
        when the connection ends; when they are closed already, `call` itself raises these.
        """
        answer: asyncio.Future[base.Frame | Fetched] = self._loop.create_future()
        self._connection.request(channel, method, answer)
        self._schedule_flush()
        return answer

    def send(self, channel: int, method: base.Frame) -> None:
        """Send a method that has no answer (basic.nack …). Raises ChannelRefused or BrokerUnavailable."""
        self._connection.send(channel, method)
        self._schedule_flush()

    def publish(
        self,
        channel: int,
        *,
        exchange: str,
        routing_key: str,
        properties: bytes,
        body: bytes,
        mandatory: bool = True,
    ) -> int:
        """Publish with a raw property list; return its confirm tag on the channel.

        Raises ChannelRefused or BrokerUnavailable, and ValueError for properties larger than a frame.
        """
        frames = publish_frame(channel, exchange, routing_key, mandatory)
        return self.write(channel, frames + content_frames(channel, properties, body, self.frame_max), 1)

    def write(self, channel: int, frames: bytes, publishes: int) -> int:
        """Send encoded publishes; return the confirm tag of the last one.

        Tags count from 1 at confirm.select. Raises ChannelRefused or BrokerUnavailable.
        """
        tag = self._connection.write(channel, frames, publishes)
        if not self._flush_due:
            self._schedule_flush()
        return tag

    def ack(self, channel: int, tag: int, multiple: bool = False) -> None:
        """Acknowledge a delivery, or with `multiple` all up to it. Raises like `write`."""
        self._connection.ack(channel, tag, multiple)
        if not self._flush_due:
            self._schedule_flush()

    def flush(self) -> None:
        """Hand everything written to the socket now, instead of at the end of this loop iteration."""
        self._flush_due = False
        data = self._connection.data_to_send(_now_ms(self._loop))
        if data and self._transport is not None:
            self._transport.write(data)

    async def close(self) -> None:
        """Say goodbye to the broker and close the socket; bytes written before are sent first. If the caller
        is cancelled, the socket is closed at once, and unsent bytes are dropped."""
        self._connection.close()
        self.flush()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.shield(self.closed)
                await self._lost.wait()
        except TimeoutError:
            self.abort()
            await self._lost.wait()
        except asyncio.CancelledError:
            self.abort()
            raise

    def abort(self) -> None:
        """Close the socket at once; unsent bytes are dropped. ConnectionClosed is reported soon after."""
        if self._transport is not None:
            self._transport.abort()

    # --- what asyncio calls -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        if connection.is_over():
            return
        opening = connection.state is ConnectionState.HANDSHAKE
        try:
            events = connection.receive_data(data, _now_ms(self._loop))
        except ProtocolViolation as violation:
            self._finish([ConnectionClosed(CODE_FRAME_ERROR, str(violation))])
            return
        if connection.replies:
            self._resolve_replies()
        if connection.is_over():
            self._finish(events)
            return
        if opening:
            self._go_on_opening()
        if events:
            self._on_events(events)
        if connection.has_output and not self._flush_due:
            self._schedule_flush()

    def connection_lost(self, exc: Exception | None) -> None:
        text = f"the connection was lost: {_why(exc)}" if exc else "the connection was closed without a word"
        events = self._connection.receive_eof(text)
        self._transport = None
        self._finish(events)
        self._lost.set()

    # --- in between ---------------------------------------------------------------------------------

    def _schedule_flush(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def _resolve_replies(self) -> None:
        replies, self._connection.replies = self._connection.replies, []
        for answer, reply in replies:
            if answer.done():  # the task that asked was cancelled
                continue
            if isinstance(reply, BrokerUnavailable):
                answer.set_exception(reply)
            else:
                answer.set_result(reply)

    def _go_on_opening(self) -> None:
        self._schedule_flush()
        if self._connection.state is ConnectionState.OPEN:
            if not self._opened.done():
                self._opened.set_result(None)
            self._arm_timer()

    def _arm_timer(self) -> None:
        deadline_ms = self._connection.next_deadline_ms()
        if deadline_ms is not None:
            wait_ms = max(0, deadline_ms - _now_ms(self._loop)) + 1
            self._timer = self._loop.call_later(wait_ms / 1_000, self._on_timer)

    def _on_timer(self) -> None:
        events = self._connection.handle_timer(_now_ms(self._loop))
        if events:
            self._finish(events)
            self.abort()  # the broker no longer takes the unsent bytes
            return
        self.flush()
        self._arm_timer()

    def _finish(self, events: list[ConnectionEvent]) -> None:
        """The connection has ended: report that once."""
        if self._timer is not None:
            self._timer.cancel()
        self._resolve_replies()
        self.flush()
        if self._transport is not None:
            self._transport.close()
            # A peer that reads nothing would keep a socket with unsent bytes open for ever.
            self._timer = self._loop.call_later(CLOSE_TIMEOUT_S, self.abort)
        if not events:
            return
        end = cast(ConnectionClosed, events[-1])
        if not self._opened.done():
            refused = LoginRefused if end.code in (ACCESS_REFUSED, _NOT_ALLOWED) else BrokerUnavailable
            self._opened.set_exception(refused(self._refusal_text(end)))
        elif not self._opened.cancelled():
            self._on_events(events)
        if not self.closed.done():  # it may be cancelled by a caller that stopped waiting
            self.closed.set_result(end)

    def _refusal_text(self, end: ConnectionClosed) -> str:
        login = self._connection.handshake.login
        if end.code == ACCESS_REFUSED:
            who = "the client certificate" if login.user is None else f"user {login.user!r}"
            return f"{self._where} refused {who}: {end.text}"
        if end.code == _NOT_ALLOWED:
            return f"{self._where} refused vhost {login.vhost!r}: {end.text}"
        return f"{self._where}: {end.text}"


async def until_it_answers(node: RabbitSettings, name: str, timeout_s: float) -> None:
    """Wait until this node lets us in or refuses to, but no longer than that. Where RabbitMQ does not run the
    host refuses; a node that stands still does neither. Raises ConfigurationError for a certificate file that
    can't be used."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    try:
        link = await Link.open(node, name=name, on_events=lambda _: None, timeout_s=timeout_s)
    except BrokerUnavailable as failure:
        why = failure.__context__
        if isinstance(why, OSError) and not isinstance(why, _REFUSALS):  # its host is away, or its name
            await asyncio.sleep(deadline - loop.time())
    else:
        await link.close()


def _now_ms(loop: asyncio.AbstractEventLoop) -> int:
    return int(loop.time() * 1_000)


def _why(problem: BaseException) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {problem.verify_message}"
    if isinstance(problem, ssl.SSLError):
        return f"TLS failed ({problem.reason or problem})"
    return str(problem) or type(problem).__name__
