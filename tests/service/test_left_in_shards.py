"""Nothing that is left in a shard is hidden, whenever a leader of it begins or ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import BasicConsume, QueueDeclare
from dispatcher.service.shards import _remains
from tests.service.clients import Client
from tests.service.harness import Bench
from tests.waiting import eventually

QUEUE = "in"


class Interrupted(Link):
    """Each question has a channel of its own: before this one something else happens."""

    before = 0
    happens: Callable[[], Awaitable[None]]

    async def open_channel(self) -> int:
        self.before -= 1
        if not self.before:
            await self.happens()
        return await super().open_channel()


@pytest.fixture
async def client(bench: Bench) -> Client:
    """The lane's lock and inbound queue are there, and a message that nobody has."""
    made = await bench.client()
    for queue in (QUEUE, bench.names().lock):
        await made.link.call(made.channel, QueueDeclare(queue=queue, durable=True))
    made.send(QUEUE, b"one", "group")
    await made.confirmed()
    await made.has_ready(QUEUE, 1)
    return made


async def read(reader: Client, *queues: str) -> None:
    for queue in queues:
        await reader.link.call(reader.channel, BasicConsume(queue=queue, exclusive=True))


@pytest.mark.parametrize("begins", [True, False])
async def test_a_leader_that_begins_or_ends_meanwhile_hides_nothing(
    bench: Bench, client: Client, begins: bool
) -> None:
    lock = bench.names().lock

    async def lead(leader: Client) -> None:
        await read(leader, lock, QUEUE)
        await client.has_ready(QUEUE, 0)

    async def end(leader: Client) -> None:
        leader.link.abort()

        async def is_gone() -> bool:
            return not await client.consumers(lock) and await client.ready(QUEUE) == 1

        await eventually(is_gone)

    for at in (1, 2, 3, 4, 67, 68):  # the 64 parking queues are asked for in between
        leader = await Client.open(bench.rabbitmq)
        if not begins:
            await lead(leader)
        looking = await Interrupted.open(bench.rabbitmq, name="looking", on_events=_nothing)
        looking.before = at
        looking.happens = lambda leader=leader: lead(leader) if begins else end(leader)
        assert await _remains(looking, bench.names(), [QUEUE]), at
        await looking.close()
        await end(leader)


async def test_what_a_leader_has_is_left_until_rabbitmq_takes_it_back(bench: Bench, client: Client) -> None:
    """RabbitMQ may take its lock back before that."""
    reader = await bench.client()
    await read(reader, QUEUE)
    await client.has_ready(QUEUE, 0)
    assert await _remains(client.link, bench.names(), [QUEUE])


def _nothing(_: Any) -> None:
    """No events are waited for."""
