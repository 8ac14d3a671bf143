"""A run names the queues that RabbitMQ has left without a leader."""

from __future__ import annotations

import asyncio

from dispatcher.nodes.servers import PrivateServers
from dispatcher.settings import RabbitSettings
from tests.chaos.leaderless import without_leader
from tests.service.clients import Client


async def test_a_queue_without_a_leader_is_named(private_servers: PrivateServers) -> None:
    rabbitmq = private_servers.rabbitmq
    async with Client.opened(RabbitSettings(url=private_servers.amqp_url)) as client:
        for queue in ("well", "left"):
            await client.declare(queue, x_queue_type="quorum")
        assert await asyncio.to_thread(without_leader, rabbitmq) == []
        await asyncio.to_thread(rabbitmq.evaluate, "ra:stop_server(quorum_queues, {'%2F_left', node()})")
        assert await asyncio.to_thread(without_leader, rabbitmq) == ["left"]
