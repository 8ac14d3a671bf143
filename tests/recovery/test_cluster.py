"""A cluster of three nodes loses each of them in turn: the lane goes on, and nothing is lost, doubled, out of
order or handled by two at a time."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.nodes import LocalCluster, LocalRedis, Management, with_vhost
from tests.conftest import Vhost
from tests.recovery.scene import CLUSTER_HEARTBEAT_S, Scene, scene_of
from tests.spec.lane_bench import clause

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: What a lane may need to go on.
STALL_S = 15.0
#: More than consumers have in hand: so many only follow if the lane goes on.
MORE = 200
RATE = 100
KEYS = {"heartbeat": f"{CLUSTER_HEARTBEAT_S}s", "reconnect_grace": "20s"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with LocalRedis() as running:
        yield running.url


@pytest.fixture
def vhost(cluster: LocalCluster, redis_url: str) -> Iterator[Vhost]:
    api = Management(cluster.nodes[0].management_url)
    name = f"cluster-{uuid.uuid4().hex[:12]}"
    api.create_vhost(name)
    yield Vhost(name, with_vhost(cluster.nodes[0].amqp_url, name), redis_url, name, api)
    for node in cluster.nodes:
        node.start()
    cluster.wait_for(cluster.nodes)
    api.delete_vhost(name)


def urls(cluster: LocalCluster, vhost: Vhost) -> tuple[str, ...]:
    return tuple(with_vhost(url, vhost.name) for url in cluster.amqp_urls)


async def goes_on(scene: Scene, what: str) -> None:
    """The lane hands over again before its time is up."""
    began = time.monotonic()
    await scene.goes_on(MORE, timeout_s=STALL_S + MORE / RATE)
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
