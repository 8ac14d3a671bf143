"""Links to a real broker for tests; every asynchronous test here runs on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import uvloop
from pamqp.commands import Basic, Confirm, Exchange, Queue

from dispatcher.amqp.events import ConnectionClosed, ConnectionEvent, Delivery
from dispatcher.amqp.link import Link
from dispatcher.settings import RabbitSettings
from tests.conftest import Vhost
from tests.waiting import eventually


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Peer:
    """A link, everything that it reported, and short words for what tests do with it."""

    def __init__(self) -> None:
        self.events: list[ConnectionEvent] = []
        self.reads: list[int] = []  # events per call
        self.link: Link

    def record(self, events: list[ConnectionEvent]) -> None:
        self.reads.append(len(events))
        self.events += events

    async def channel(self, *, confirms: bool = True, prefetch: int = 0) -> int:
        channel = await self.link.open_channel()
        if confirms:
            await self.link.call(channel, Confirm.Select())
        if prefetch:
            await self.link.call(channel, Basic.Qos(prefetch_count=prefetch))
        return channel

    async def queue(self, channel: int, name: str = "", **given: Any) -> str:
        answer = await self.link.call(channel, Queue.Declare(queue=name, **{"durable": True, **given}))
        return str(answer.queue)

    async def consume(self, channel: int, queue: str, tag: str = "c", **given: Any) -> None:
        await self.link.call(channel, Basic.Consume(queue=queue, consumer_tag=tag, **given))

    async def lane_exchange(self, channel: int, *queues: str) -> str:
        """A direct exchange of our own with queues bound by their names."""
        await self.link.call(channel, Exchange.Declare(exchange="dispatch.lane", exchange_type="direct"))
        for queue in queues:
            await self.link.call(
                channel, Queue.Bind(queue=queue, exchange="dispatch.lane", routing_key=queue)
            )
        return "dispatch.lane"

    def put(
        self, channel: int, queue: str, body: bytes = b"body", properties: bytes = b"\x00\x00", **given: Any
    ) -> int:
        """Publish through the default exchange."""
        return self.link.publish(
            channel, exchange="", routing_key=queue, properties=properties, body=body, **given
        )

    def of(self, kind: type[ConnectionEvent]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, kind: type[ConnectionEvent], count: int = 1, timeout_s: float = 10.0) -> list[Any]:
        """The first `count` events of this kind, once they are there."""
        await eventually(
            lambda: len(self.of(kind)) >= count, timeout_s, f"{count} {kind.__name__} in {self.events[-5:]}"
        )
        return self.of(kind)[:count]

    async def deliveries(self, count: int) -> list[Delivery]:
        return await self.until(Delivery, count)


Connect = Callable[..., Awaitable[Peer]]


@pytest.fixture
async def connect_to() -> AsyncIterator[Connect]:
    """Opens links with given settings; closes them after the test."""
    async with AsyncExitStack() as stack:

        async def connect(settings: RabbitSettings, name: str = "test", **given: Any) -> Peer:
            peer = Peer()
            peer.link = await Link.open(settings, name=name, on_events=peer.record, **given)
            stack.push_async_callback(peer.link.close)
            return peer

        yield connect


@pytest.fixture
async def connect(connect_to: Connect, vhost: Vhost) -> Connect:
    """Opens links to the test's own vhost."""

    async def connect_to_vhost(**given: Any) -> Peer:
        return await connect_to(RabbitSettings(url=vhost.amqp_url), **given)

    return connect_to_vhost


def closes(peer: Peer) -> list[ConnectionClosed]:
    return peer.of(ConnectionClosed)
