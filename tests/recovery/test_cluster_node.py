"""A cluster of three nodes loses one for good while messages are parked, and has one that stands still."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator

import pytest

from dispatcher.nodes import LocalCluster, LocalRedis, Management, with_vhost
from dispatcher.nodes.local_cluster import ClusterNode
from dispatcher.service.topology import parking_queues
from tests.conftest import Vhost
from tests.service.harness import LANE, Bench, bench_of, lane
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PARKED = 400
LOOK_AHEAD = 50
#: A node that stands still is given up within five quarters of the cluster's `net_ticktime` of 6 s …
GIVEN_UP_S = 7.5
#: … and then a lane goes on in this time.
STALL_S = 15.0


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def vhost(cluster: LocalCluster) -> Iterator[Vhost]:
    """The test's own clients are at the first node, which stays."""
    with LocalRedis() as redis:
        api = Management(cluster.nodes[0].management_url)
        name = f"parking-{uuid.uuid4().hex[:12]}"
        api.create_vhost(name)
        yield Vhost(name, with_vhost(cluster.nodes[0].amqp_url, name), redis.url, name, api)


def leader_of(cluster: LocalCluster, bench: Bench, queue: str) -> ClusterNode:
    vhost = bench.vhost
    name = vhost.management(f"queues/{vhost.name}/{queue}")["leader"]
    return next(node for node in cluster.nodes if node.node == name)


async def test_what_is_parked_outlives_the_node_of_its_queue(cluster: LocalCluster, vhost: Vhost) -> None:
    urls = [
        with_vhost(url, vhost.name) for url in cluster.amqp_urls[1:]
    ]  # a queue's leader is where it is made
    async with bench_of(vhost) as bench:
        client = await bench.client()
        await client.declare("in", x_queue_type="quorum")
        await bench.run(changes={"rabbitmq": {"urls": urls}}, orders=lane(look_ahead=LOOK_AHEAD))
        stuck = await bench.joined("stuck", prefetch=1, hold=True)
        client.send("in", b"0", "a")
        await stuck.has(1)
        other = await bench.joined("other")
        for number in range(1, PARKED + 1):
            client.send("in", b"%d" % number, "a")
        await eventually(lambda: bench.status()["parked"] == PARKED, what="the backlog is parked")
        lost = leader_of(cluster, bench, parking_queues(bench.names(), 1)[0])
        assert lost is not cluster.nodes[0]
        await asyncio.to_thread(lost.close)
        client.send("in", b"0", "b")
        await other.has(1)
        stuck.release()
        await stuck.has(PARKED + 1)
        assert [int(body) for body in stuck.bodies("a")] == list(range(PARKED + 1))
        assert not other.of_group("a")
        await eventually(lambda: bench.status()["parking"] == [], what="the parking queue was deleted")
        assert bench.status()["parked_lost"] == 0


async def test_a_lane_goes_on_beside_a_node_that_stands_still(cluster: LocalCluster, vhost: Vhost) -> None:
    """That node has the lane's own connection, and the leaders of its queues."""
    urls = [with_vhost(url, vhost.name) for url in cluster.amqp_urls]
    async with bench_of(vhost) as bench:
        client = await bench.client()
        await client.declare("in", x_queue_type="quorum")
        rabbitmq = {"urls": urls[1:], "heartbeat": "4s"}
        await bench.run(changes={"rabbitmq": rabbitmq}, orders=lane())
        consumer = await bench.joined("one")
        client.send("in", b"0", "a")
        await consumer.has(1)
        link = bench.runners[LANE]._link
        assert link is not None
        still = cluster.nodes[urls.index(link.url)]
        began = time.monotonic()
        await asyncio.to_thread(still.freeze)
        try:
            for number in range(1, 20):
                client.send("in", b"%d" % number, "a")
            await consumer.has(20, timeout_s=GIVEN_UP_S + STALL_S)
            took_s = time.monotonic() - began
        finally:
            still.thaw()
        assert [int(body) for body in consumer.bodies("a")] == list(range(20))
        print(f"stood for {took_s:.1f} s")
