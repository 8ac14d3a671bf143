"""A quorum inbound queue after its broker was killed: nobody reads it before it knows who had what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.link import Link
from dispatcher.errors import BrokerUnavailable
from dispatcher.nodes.servers import PrivateServers
from dispatcher.service.inbound_feed import ELECTION_S, open_inbound
from dispatcher.settings import RabbitSettings
from tests.recovery.scene import DELIVERY_LIMIT
from tests.service.clients import Client
from tests.service.harness import private_vhost
from tests.waiting import eventually

QUEUE = "in"
WINDOW = 300
#: More than one window: there is something else to deliver than what the killed consumer had.
MESSAGES = 2 * WINDOW
SETTLED_S = 6.0
RETRY_S = 0.003

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@asynccontextmanager
async def _reading(settings: RabbitSettings, *, restarted: bool) -> AsyncIterator[list[int]]:
    """What a leader gets that comes as soon as RabbitMQ lets it in."""
    got: list[int] = []

    def note(events: list[Any]) -> None:
        got.extend(int(event.body) for event in events if isinstance(event, Delivery))

    while True:
        try:
            link = await Link.open(settings, name="leader", on_events=note)
            break
        except BrokerUnavailable:
            await asyncio.sleep(RETRY_S)  # sleeps: between two attempts
    try:
        await open_inbound(link, QUEUE, "inbound", WINDOW, election_s=ELECTION_S if restarted else 0.0)
        yield got
    finally:
        link.abort()


async def test_a_killed_consumers_messages_come_before_newer_ones(private_servers: PrivateServers) -> None:
    """G-1. RabbitMQ lets a reader in before the queue has a leader, and tells it that it is alone."""
    settings = RabbitSettings(url=private_vhost(private_servers).amqp_url)
    async with Client.opened(settings) as client:
        await client.declare(QUEUE, x_queue_type="quorum", x_delivery_limit=DELIVERY_LIMIT)
        for number in range(MESSAGES):
            client.send(QUEUE, str(number).encode())
        await client.confirmed()
    await asyncio.to_thread(private_servers.rabbitmq.sync_definitions)
    # sleeps: a quorum queue that is younger than that has no leader for a minute after a kill -9
    await asyncio.sleep(SETTLED_S)  # sleeps: see above
    async with _reading(settings, restarted=False) as got:
        await eventually(lambda: len(got) == WINDOW, what="a window of messages")
        await asyncio.to_thread(private_servers.rabbitmq.kill9)
    starting = asyncio.create_task(asyncio.to_thread(private_servers.rabbitmq.start))
    async with _reading(settings, restarted=True) as got:
        await eventually(lambda: len(got) == WINDOW, what="a window of messages")
        assert got == list(range(WINDOW))
    await starting
