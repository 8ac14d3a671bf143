"""A cluster of three nodes loses one after the other, gets a new one, and is upgraded: the lane goes on, and
nothing is lost, doubled, out of order or handled by two at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dispatcher.nodes import LocalCluster, with_vhost
from dispatcher.nodes.local_cluster import ClusterNode
from dispatcher.wire.protocol import LaneNames
from tests.conftest import Vhost
from tests.recovery.load import CLUSTER_HEARTBEAT_S
from tests.recovery.scene import MORE, QUEUES, Scene, scene_of
from tests.service.harness import LANE
from tests.spec.lane_bench import clause
from tests.waiting import SHARED, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: What a lane may need to go on.
STALL_S = 15.0 * SHARED
#: … after a clean stop.
STALL_AFTER_STOP_S = 10.0 * SHARED
RATE = 50
KEYS = {"heartbeat": f"{CLUSTER_HEARTBEAT_S}s", "reconnect_grace": "20s"}


@pytest.fixture
def vhost(cluster_vhost: Vhost) -> Vhost:
    return cluster_vhost


def urls(cluster: LocalCluster, vhost: Vhost) -> tuple[str, ...]:
    return tuple(with_vhost(url, vhost.name) for url in cluster.amqp_urls)


async def goes_on(scene: Scene, what: str, stall_s: float = STALL_S) -> None:
    """The lane hands over again before its time is up."""
    began = time.monotonic()
    await scene.goes_on(timeout_s=stall_s + MORE / RATE)
    print(f"{what}: {time.monotonic() - began:.1f} s for {MORE} messages")


@pytest.mark.timeout(1200)
async def test_a_lane_outlives_the_nodes_that_it_needs_and_an_upgrade(
    cluster: LocalCluster, vhost: Vhost, tmp_path: Path
) -> None:
    """One with leaders of the lane's queues is killed. Then each node is stopped as systemd does it and
    started again: the first is one with such leaders, the others follow as in an upgrade, as soon as no queue
    needs them; the last one sends its clients away first, as `rabbitmq-upgrade drain` does. At the end one is
    stopped as `rabbitmqctl stop_app` does: its Erlang stays."""
    clause("R-9", "goes on within 15 s when one node of a RabbitMQ cluster of three is killed")
    clause("R-9", "within 10 s when it is stopped in order")
    async with scene_of(vhost, tmp_path, "exclusive", 1, RATE, urls(cluster, vhost)) as scene:
        await scene.begin(2, **KEYS)
        lock = LaneNames(LANE, vhost.redis_prefix).lock
        leader = leader_of(cluster, vhost, lock)
        await asyncio.to_thread(leader.kill9)
        await goes_on(scene, "killed")
        await back(cluster, scene, leader.start)
        leader = leader_of(cluster, vhost, lock)
        await during(scene, "stopped", leader.stop, STALL_AFTER_STOP_S)
        await back(cluster, scene, leader.start)
        others = [node for node in cluster.nodes if node is not leader]
        for node in others:
            await eventually(partial(asyncio.to_thread, node.is_spare), what="all members of all queues")
            if node is others[-1]:
                await during(scene, "drained", node.drain, STALL_AFTER_STOP_S)
            await during(scene, "stopped", node.stop, STALL_AFTER_STOP_S)
            await back(cluster, scene, node.start)
        leader = leader_of(cluster, vhost, QUEUES[0])
        await during(scene, "stopped", leader.stop_app, STALL_AFTER_STOP_S)
        await back(cluster, scene, leader.start_app)
        await scene.verify()


async def test_a_lane_outlives_a_node_that_is_replaced(
    cluster: LocalCluster, vhost: Vhost, tmp_path: Path
) -> None:
    """One of three is lost for good, and a new one takes its place. Then another one of the old ones is
    killed: without members on the new node the lane's queues would have no majority."""
    async with scene_of(vhost, tmp_path, "exclusive", 2, RATE, urls(cluster, vhost)) as scene:
        await scene.begin(2, **KEYS)
        lock = LaneNames(LANE, vhost.redis_prefix).lock
        lost = leader_of(cluster, vhost, lock)
        others = [node for node in cluster.nodes if node is not lost]
        await asyncio.to_thread(lost.kill9)
        await goes_on(scene, "lost")
        await asyncio.to_thread(cluster.wait_for, others)
        await during(scene, "forgotten", lambda: cluster.forget(lost))
        await during(scene, "joined", cluster.add)
        await during(scene, "grown", lambda: cluster.grow(cluster.nodes[-1], vhost.name))
        await scene.name_nodes(urls(cluster, vhost))
        another = leader_of(cluster, vhost, lock)
        assert another in others
        await eventually(lambda: asyncio.to_thread(another.is_spare), what="members on the new node")
        await asyncio.to_thread(another.kill9)
        await goes_on(scene, "another one killed")
        await back(cluster, scene, another.start)
        await scene.verify()


async def during(scene: Scene, what: str, change: Callable[[], object], stall_s: float = STALL_S) -> None:
    """The lane goes on while that is done, and after it."""
    changing = asyncio.create_task(asyncio.to_thread(change))
    while not changing.done():
        await goes_on(scene, what, stall_s)
    await changing
    await goes_on(scene, what, stall_s)


async def back(cluster: LocalCluster, scene: Scene, start: Callable[[], object]) -> None:
    await during(scene, "back", start)
    await asyncio.to_thread(cluster.wait_for, cluster.nodes)


def leader_of(cluster: LocalCluster, vhost: Vhost, queue: str) -> ClusterNode:
    name = cluster.leader_of(queue, vhost.name)
    return next(node for node in cluster.nodes if node.node == name)
