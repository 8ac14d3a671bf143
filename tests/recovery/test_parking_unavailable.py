"""A parking queue without a leader, on a real RabbitMQ: its groups wait, the lane goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import structlog

from dispatcher.nodes import LocalRabbitMQ, Management, with_vhost
from dispatcher.nodes.servers import PrivateServers
from dispatcher.service.topology import parking_queues
from tests.conftest import Vhost
from tests.service.harness import LANE, Bench, bench_of, lane
from tests.service.test_parking import BACKLOG, LOOK_AHEAD, park_a_group
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

VHOST = "parking"


class Node:
    """A RabbitMQ of its own, whose quorum queues can lose their leader."""

    def __init__(self, rabbitmq: LocalRabbitMQ, bench: Bench) -> None:
        self._rabbitmq = rabbitmq
        self.bench = bench

    def _server(self, queue: str) -> str:
        return f"{{'{VHOST}_{queue}', node()}}"

    def stop_leader(self, queue: str) -> None:
        """Its only member ends: who asks the queue for a message fails, as where RabbitMQ has left it
        without a leader."""
        self._rabbitmq.evaluate(f"ra:stop_server(quorum_queues, {self._server(queue)})")

    def start_leader(self, queue: str) -> None:
        self._rabbitmq.evaluate(f"ra:restart_server(quorum_queues, {self._server(queue)})")


@pytest.fixture
async def node(private_servers: PrivateServers) -> AsyncIterator[Node]:
    api = Management(private_servers.management_url)
    api.create_vhost(VHOST)
    url = with_vhost(private_servers.amqp_url, VHOST)
    async with bench_of(Vhost(VHOST, url, private_servers.redis_url, VHOST, api)) as bench:
        yield Node(private_servers.rabbitmq, bench)


async def test_its_groups_wait_and_say_why_and_all_others_go_on(node: Node) -> None:
    bench = node.bench
    client = await bench.client()
    await client.declare("in", x_queue_type="quorum")
    await bench.run(orders=lane(look_ahead=LOOK_AHEAD))
    _, stuck, other = await park_a_group(bench, client)
    queue, runner = parking_queues(bench.names(), 1)[0], bench.runners[LANE]
    with structlog.testing.capture_logs() as logs:
        await asyncio.to_thread(node.stop_leader, queue)
        stuck.release()  # so it is read
        await eventually(lambda: (bench.status().get("parking") or [{}])[0].get("problem"), what="it is told")
        leaderships = runner.leaderships
        for number in range(50):
            client.send("in", b"%d" % number, "b")
        await other.has(50)
        assert [int(body) for body in other.bodies("b")] == list(range(50))
        assert (await bench.ask("groups.why", group="a"))["reason"] == "parking_unavailable"
        await asyncio.to_thread(node.start_leader, queue)
        await stuck.has(BACKLOG)
    assert [int(body) for body in stuck.bodies("a")] == list(range(BACKLOG))
    assert runner.leaderships == leaderships, "it was tried on another connection"
    told = [record["event"] for record in logs if record["event"].startswith("parking_")]
    assert told.count("parking_unavailable") == told.count("parking_available") == 1
