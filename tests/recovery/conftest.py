"""Fixtures of the recovery tests."""

from __future__ import annotations

import random
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from dispatcher.nodes import LocalCluster, LocalRedis, Management, with_vhost
from tests.conftest import Vhost
from tests.recovery.scene import KINDS, WORK_MS, Scene, scene_of

NODES = 3
OpenScene = Callable[..., Awaitable[Scene]]


@pytest.fixture(scope="package")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(NODES) as running:
        yield running


@pytest.fixture
def cluster_vhost(cluster: LocalCluster) -> Iterator[Vhost]:
    """A vhost of the cluster, and a Redis. Its clients are at the first node; a test may stop, kill
    and forget any: the next test finds three that run."""
    with LocalRedis() as redis:
        api = Management(cluster.nodes[0].management_url)
        name = f"cluster-{uuid.uuid4().hex[:12]}"
        api.create_vhost(name)
        yield Vhost(name, with_vhost(cluster.nodes[0].amqp_url, name), redis.url, name, api)
        for node in cluster.nodes:
            node.start()
        while len(cluster.nodes) < NODES:
            cluster.add()
        cluster.wait_for(cluster.nodes)
        Management(cluster.nodes[0].management_url).delete_vhost(name)


@pytest.fixture
async def open_scene(tmp_path: Path) -> AsyncIterator[OpenScene]:
    """`await open_scene(vhost, policy)`: everything runs, under load."""
    async with AsyncExitStack() as stack:

        async def opened(
            vhost: Vhost,
            policy: str,
            dispatchers: int = 2,
            work_ms: int = WORK_MS,
            kinds: tuple[str, ...] = KINDS,
            **options: str,
        ) -> Scene:
            seed = random.randrange(sys.maxsize)
            folder = tmp_path / f"scene{sum(1 for _ in tmp_path.iterdir())}"
            folder.mkdir()
            scene = await stack.enter_async_context(scene_of(vhost, folder, policy, seed))
            scene.work_ms, scene.kinds = work_ms, kinds
            await scene.begin(dispatchers, **options)
            return scene

        yield opened
