"""Where the event exchange plugin is on, a lost consumer is noticed without any message to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dispatcher.nodes.servers import PrivateServers
from tests.service.harness import Bench, bench_of, lane, private_vhost
from tests.service.reader import Reader
from tests.waiting import eventually


@pytest.fixture
async def own_bench(private_servers: PrivateServers) -> AsyncIterator[Bench]:
    """In the default vhost, which is the only one that RabbitMQ tells of its events in."""
    async with bench_of(private_vhost(private_servers, "/")) as bench:
        yield bench


@pytest.mark.slow
async def test_who_reads_a_hand_over_consumers_queue_is_heard_of_at_once(own_bench: Bench) -> None:
    bench = own_bench
    named = [{"id": "one"}, {"id": "two"}]
    await bench.run(orders=lane("handed", handover=True, consumers=named, liveness_interval="60s"))
    client = await bench.client()
    one = await Reader.open(bench.rabbitmq, bench.names().consumer("one"), acks=False)
    client.send("handed", b"0", "g")
    await client.confirmed()
    await one.has(1)
    two = await Reader.open(bench.rabbitmq, bench.names().consumer("two"))
    await eventually(lambda: bench.counter("joins") == 2)
    one.die()
    await two.has(1)
    two.die()


@pytest.mark.slow
async def test_a_deleted_queue_is_heard_of_at_once(own_bench: Bench) -> None:
    bench = own_bench
    await bench.run(orders=lane(liveness_interval="60s"))
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    client.send("in", b"0", "g")
    await consumer.has(1)
    idle = await bench.joined("c2")
    await idle.drop()
    await eventually(lambda: bench.counter("consumers_taken") == 1)
    await consumer.drop()
    await eventually(lambda: bench.counter("consumers_taken") == 2)
    heir = await bench.joined("c3")
    await heir.has(1)
    assert heir.received[0].attempt == 2
