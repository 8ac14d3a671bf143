"""A cluster of three nodes loses each of them in turn: the lane goes on, and nothing is lost, doubled, out of
order or handled by two at a time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from dispatcher.nodes import LocalCluster, with_vhost
from tests.conftest import Vhost
from tests.recovery.scene import CLUSTER_HEARTBEAT_S, Scene, scene_of
from tests.spec.lane_bench import clause
from tests.waiting import SHARED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: What a lane may need to go on.
STALL_S = 15.0 * SHARED
#: … after a clean stop.
STALL_AFTER_STOP_S = 10.0 * SHARED
#: More than consumers have in hand: so many only follow if the lane goes on.
MORE = 200
RATE = 100
KEYS = {"heartbeat": f"{CLUSTER_HEARTBEAT_S}s", "reconnect_grace": "20s"}


@pytest.fixture
def vhost(cluster_vhost: Vhost) -> Vhost:
    return cluster_vhost


def urls(cluster: LocalCluster, vhost: Vhost) -> tuple[str, ...]:
    return tuple(with_vhost(url, vhost.name) for url in cluster.amqp_urls)


async def goes_on(scene: Scene, what: str, stall_s: float = STALL_S) -> None:
    """The lane hands over again before its time is up."""
    began = time.monotonic()
    await scene.goes_on(MORE, timeout_s=stall_s + MORE / RATE)
    print(f"{what}: {time.monotonic() - began:.1f} s for {MORE} messages")


async def test_a_lane_outlives_each_node(cluster: LocalCluster, vhost: Vhost, tmp_path: Path) -> None:
    clause("R-9", "goes on within 15 s when one node of a RabbitMQ cluster of three is killed")
    async with scene_of(vhost, tmp_path, "exclusive", 1, RATE, urls(cluster, vhost)) as scene:
        await scene.begin(2, **KEYS)
        for node in cluster.nodes:
            await asyncio.to_thread(node.kill9)
            await goes_on(scene, f"kill {cluster.nodes.index(node)}")
            await asyncio.to_thread(node.start)
            await asyncio.to_thread(cluster.wait_for, cluster.nodes)
            await goes_on(scene, "back")
        await scene.verify()


async def test_a_lane_goes_on_while_each_node_is_stopped(
    cluster: LocalCluster, vhost: Vhost, tmp_path: Path
) -> None:
    """One as systemd stops it, the others as `rabbitmqctl stop_app` does: their Erlang stays."""
    clause("R-9", "within 10 s when it is stopped in order")
    async with scene_of(vhost, tmp_path, "exclusive", 2, RATE, urls(cluster, vhost)) as scene:
        await scene.begin(2, **KEYS)
        for number, node in enumerate(cluster.nodes):
            stop, start = (node.stop_app, node.start_app) if number else (node.stop, node.start)
            stopping = asyncio.create_task(asyncio.to_thread(stop))
            while not stopping.done():  # it works on for a while
                await goes_on(scene, f"{stop.__name__} {number}", STALL_AFTER_STOP_S)
            await stopping
            await asyncio.to_thread(start)
            await asyncio.to_thread(cluster.wait_for, cluster.nodes)
            await goes_on(scene, "back")
        await scene.verify()
