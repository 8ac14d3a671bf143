"""A cluster of three nodes loses one after the other: the lane goes on, and nothing is lost, doubled, out of
order or handled by two at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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
from tests.waiting import SHARED

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


async def test_a_lane_outlives_the_nodes_that_it_needs(
    cluster: LocalCluster, vhost: Vhost, tmp_path: Path
) -> None:
    """Each is one with leaders of the lane's queues: one is killed, one is stopped as systemd does it, one as
    `rabbitmqctl stop_app` does: its Erlang stays."""
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
        await stopped(scene, leader.stop)
        await back(cluster, scene, leader.start)
        leader = leader_of(cluster, vhost, QUEUES[0])
        await stopped(scene, leader.stop_app)
        await back(cluster, scene, leader.start_app)
        await scene.verify()


async def stopped(scene: Scene, stop: Callable[[], None]) -> None:
    stopping = asyncio.create_task(asyncio.to_thread(stop))
    while not stopping.done():  # it works on for a while
        await goes_on(scene, stop.__name__, STALL_AFTER_STOP_S)
    await stopping


async def back(cluster: LocalCluster, scene: Scene, start: Callable[[], None]) -> None:
    await asyncio.to_thread(start)
    await asyncio.to_thread(cluster.wait_for, cluster.nodes)
    await goes_on(scene, "back")


def leader_of(cluster: LocalCluster, vhost: Vhost, queue: str) -> ClusterNode:
    name = cluster.leader_of(queue, vhost.name)
    return next(node for node in cluster.nodes if node.node == name)
