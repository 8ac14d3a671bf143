"""The service's AMQP link on the modelled broker: same calls, same events, same errors as the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from pamqp import commands

from dispatcher.amqp.connection import CODE_FRAME_ERROR
from dispatcher.amqp.events import Blocked, ChannelClosed, ConnectionClosed, ConnectionEvent, Unblocked
from dispatcher.errors import BrokerUnavailable, ChannelRefused
from dispatcher.service.queue_kinds import IMPOSSIBLE_CONSUME
from dispatcher.sim.broker import Broker
from dispatcher.sim.channels import Answer
from dispatcher.sim.connections import BrokerConnection
from dispatcher.sim.loop import ProcessLoop
from dispatcher.sim.queues import Node

_FRAME_HEAD: Final = Struct(">BHI").unpack_from
_BODY_SIZE: Final = Struct(">Q").unpack_from
_METHOD, _HEADER = 1, 2
_OPEN_MS: Final = 3


class SimLink:
    """What `dispatcher.amqp.link.Link` promises, as far as the service uses it."""

    frame_max = 131_072
    server_properties: Final[dict[str, Any]] = {"version": "3.10"}

    def __init__(self, process: ProcessLoop, on_events: Callable[[list[ConnectionEvent]], None]) -> None:
        self._process = process
        self._on_events = on_events
        self._connection: BrokerConnection | None = None
        self._channels = 0
        self.blocked: str | None = None
        self._calls: dict[asyncio.Future[Any], tuple[int, str]] = {}  # channel and request, in order
        self._refused: dict[int, ChannelClosed] = {}
        self._published: dict[int, int] = {}
        self.closed: asyncio.Future[ConnectionClosed] = process.create_future()

    @classmethod
    async def open(
        cls,
        broker: Broker,
        process: ProcessLoop,
        *,
        name: str,
        on_events: Callable[[list[ConnectionEvent]], None],
        node: Node | None = None,
    ) -> SimLink:
        """`node`: the one to connect to; None: any."""
        link = cls(process, on_events)
        await asyncio.sleep(_OPEN_MS / 1000)
        lets_in = broker.up if node is None else node.works
        if not lets_in or process.scheduler.now_ms < process.cut_off_until_ms:
            raise BrokerUnavailable("RabbitMQ can't be reached: connection refused")
        link._connection = BrokerConnection(broker, process, name, link._receive, link._lost, node)
        return link

    @property
    def connection(self) -> BrokerConnection:
        assert self._connection is not None
        return self._connection

    # -- calls --

    async def open_channel(self) -> int:
        self._channels += 1
        number = self._channels
        await self._ask(number, BrokerConnection.open_channel)
        return number

    def _ask(self, channel: int, operation: Callable[..., None], *arguments: Any) -> asyncio.Future[Any]:
        self._check(channel)
        future = self._process.create_future()
        self._calls[future] = channel, operation.__name__
        self.connection.send(operation, channel, future, *arguments)
        return future

    def _check(self, channel: int) -> None:
        if self.connection.gone:
            raise BrokerUnavailable("the connection is closed")
        closed = self._refused.get(channel)
        if closed is not None:
            raise ChannelRefused(closed.code, closed.text)

    def call(self, channel: int, method: Any) -> asyncio.Future[Any]:
        match method:
            case commands.Queue.Declare():
                arguments: dict[str, Any] = method.arguments or {}
                dead = arguments.get("x-dead-letter-exchange"), arguments.get("x-dead-letter-routing-key")
                return self._ask(
                    channel, BrokerConnection.declare, method.queue, method.passive, method.exclusive,
                    arguments.get("x-queue-type") == "quorum", arguments.get("x-max-length", 0),
                    dead if None not in dead else None, arguments.get("x-queue-type") == "stream",
                    arguments.get("x-single-active-consumer", False), "x-max-priority" in arguments,
                )  # fmt: skip
            case commands.Basic.Consume() if method.arguments == IMPOSSIBLE_CONSUME:
                return self._ask(channel, BrokerConnection.consume_impossibly, method.queue)
            case commands.Basic.Consume():
                return self._ask(
                    channel, BrokerConnection.consume, method.queue, method.consumer_tag, method.no_ack,
                    method.exclusive,
                )  # fmt: skip
            case commands.Queue.Bind():
                return self._ask(
                    channel, BrokerConnection.bind, method.queue, method.exchange, method.routing_key
                )
            case commands.Exchange.Declare():
                return self._ask(channel, BrokerConnection.declare_exchange, method.exchange, method.passive)
            case commands.Basic.Qos():
                return self._ask(channel, BrokerConnection.qos, method.prefetch_count)
            case commands.Basic.Cancel():
                return self._ask(channel, BrokerConnection.cancel, method.consumer_tag)
            case commands.Confirm.Select():
                return self._ask(channel, BrokerConnection.select_confirms)
            case commands.Channel.Close():
                return self._ask(channel, BrokerConnection.close_channel)
            case _:
                return self._call_rare(channel, method)

    def _call_rare(self, channel: int, method: Any) -> asyncio.Future[Any]:
        match method:
            case commands.Queue.Unbind():
                return self._ask(
                    channel, BrokerConnection.unbind, method.queue, method.exchange, method.routing_key
                )
            case commands.Queue.Delete():
                return self._ask(
                    channel, BrokerConnection.delete, method.queue, method.if_empty, method.if_unused
                )
            case commands.Basic.Get():
                return self._ask(channel, BrokerConnection.get, method.queue)
        raise NotImplementedError(f"the modelled broker has no {method.name}")

    # -- sends --

    def send(self, channel: int, method: commands.Basic.Nack) -> None:
        self._check(channel)
        if method.requeue:
            self.connection.send(BrokerConnection.give_back, channel, method.delivery_tag)
        else:
            self.connection.send(BrokerConnection.reject, channel, method.delivery_tag, False)

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
        self._check(channel)
        self.connection.send(
            BrokerConnection.publish, channel, exchange, routing_key, mandatory, properties, body
        )
        return self._count(channel, 1)

    def write(self, channel: int, frames: bytes, publishes: int) -> int:
        self._check(channel)
        send = self.connection.send
        for exchange, key, mandatory, properties, body in read_publishes(frames):
            send(BrokerConnection.publish, channel, exchange, key, mandatory, properties, body)
        return self._count(channel, publishes)

    def _count(self, channel: int, publishes: int) -> int:
        last = self._published.get(channel, 0) + publishes
        self._published[channel] = last
        return last

    def ack(self, channel: int, tag: int, multiple: bool = False) -> None:
        self._check(channel)
        self.connection.send(BrokerConnection.ack, channel, tag, multiple)

    def flush(self) -> None:
        """Nothing to do: every send is on its way at once."""

    # -- the end --

    async def close(self) -> None:
        if not self.connection.gone:
            self.connection.close()
            self._finish(ConnectionClosed(200, "closed"))

    def abort(self) -> None:
        if not self.connection.gone:
            self.connection.reset("aborted", told=False)
            self._process.call_soon(self._finish, ConnectionClosed(0, "aborted"))

    def _lost(self, why: str) -> None:
        self._finish(ConnectionClosed(self.connection.end_code, why))

    def _finish(self, end: ConnectionClosed) -> None:
        for future in self._calls:
            if not future.done():
                future.set_exception(BrokerUnavailable(end.text))
                future.exception()
        self._calls.clear()
        if not self.closed.done():
            self.closed.set_result(end)
            self._on_events([end])

    # -- what the broker sends --

    def _receive(self, batch: list[Any]) -> None:
        if self.connection.gone:
            return
        events: list[ConnectionEvent] = []
        problem: str | None = None
        for item in batch:
            kind = type(item)
            if kind is Answer:
                problem = self._out_of_turn(item)
                if problem is not None:
                    break
                if not item.token.done():
                    item.token.set_result(_reply(item.result))
            else:
                if kind is ChannelClosed:
                    self._refuse(item)
                elif kind is Blocked or kind is Unblocked:
                    self.blocked = item.reason if kind is Blocked else None
                events.append(item)
        if events:
            self._on_events(events)
        if problem is not None:
            self._misread(problem)

    def _out_of_turn(self, answer: Answer) -> str | None:
        """The problem with this answer, if it has one. A reply does not name its request, so it breaks the
        protocol if the oldest open request is of another kind."""
        first_of_all = next(iter(self._calls), None)
        if first_of_all is not None and answer.token is first_of_all:
            del self._calls[first_of_all]
            return None
        channel, asked = self._calls.get(answer.token, (0, ""))
        due = next((first for at, first in self._calls.values() if at == channel), asked)
        self._calls.pop(answer.token, None)
        return f"the broker answered {asked} before {due} (channel {channel})" if due != asked else None

    def _misread(self, problem: str) -> None:
        self.connection.broker.misread.append(problem)
        self.connection.reset(problem, told=False)
        self._finish(ConnectionClosed(CODE_FRAME_ERROR, problem))

    def _refuse(self, closed: ChannelClosed) -> None:
        self._refused[closed.channel] = closed
        for future in [f for f, (channel, _) in self._calls.items() if channel == closed.channel]:
            del self._calls[future]
            if not future.done():
                future.set_exception(ChannelRefused(closed.code, closed.text))


class _DeclareOk:
    """The fields of queue.declare-ok that the service reads."""

    __slots__ = ("consumer_count", "message_count", "queue")

    def __init__(self, queue: str, message_count: int, consumer_count: int) -> None:
        self.queue = queue
        self.message_count = message_count
        self.consumer_count = consumer_count


def _reply(result: Any) -> Any:
    return _DeclareOk(*result) if type(result) is tuple else result


def read_publishes(frames: bytes) -> list[tuple[str, str, bool, bytes, bytes]]:
    """The publishes in encoded frames: exchange, routing key, mandatory, properties, body."""
    found = []
    at, end = 0, len(frames)
    while at < end:
        _, _, size = _FRAME_HEAD(frames, at)
        payload = at + 7
        exchange_end = payload + 7 + frames[payload + 6]
        key_end = exchange_end + 1 + frames[exchange_end]
        exchange = frames[payload + 7 : exchange_end].decode()
        key = frames[exchange_end + 1 : key_end].decode()
        mandatory = bool(frames[key_end] & 1)
        at = payload + size + 1
        _, _, size = _FRAME_HEAD(frames, at)
        (remaining,) = _BODY_SIZE(frames, at + 7 + 4)
        properties = frames[at + 7 + 12 : at + 7 + size]
        at += 7 + size + 1
        parts = []
        while remaining:
            _, _, size = _FRAME_HEAD(frames, at)
            parts.append(frames[at + 7 : at + 7 + size])
            remaining -= size
            at += 7 + size + 1
        found.append((exchange, key, mandatory, properties, b"".join(parts)))
    return found
