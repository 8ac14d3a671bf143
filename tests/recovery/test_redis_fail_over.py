"""Redis fails over under load to a server that lacks the last writes, and back.

The leader notices what is missing and writes its state back (G-1 to G-4, G-6).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from urllib.parse import urlsplit

import pytest

from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.nodes.ports import LOOPBACK
from dispatcher.redis_store.scripts import LaneKeys
from tests.conftest import Vhost
from tests.recovery.conftest import OpenScene
from tests.recovery.scene import Scene
from tests.redis_store.cluster_nodes import LocalCluster, ask, stopped
from tests.redis_store.proxy import Proxy
from tests.redis_store.sentinel_node import PROMOTED_S, is_in_sync, is_master, watched_master
from tests.service.harness import LANE
from tests.spec.lane_bench import clause
from tests.waiting import SHARED, eventually

#: From the moment in which the new primary is there to the next message.
STALL_S = 5.0 * SHARED
#: How many handlings go by that the replica does not learn of: more than five seconds of the load.
UNSEEN = 1_050
POLICY = "exclusive"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _at(vhost: Vhost, redis_url: str) -> Vhost:
    return dataclasses.replace(vhost, redis_url=redis_url)


async def _killed_without_its_last_writes(scene: Scene, primary: LocalRedis, replica: LocalRedis) -> None:
    with stopped(replica):
        ask(primary, "CLIENT", "KILL", "TYPE", "replica")
        await scene.goes_on(UNSEEN)
        primary.kill9()


async def _goes_on_soon(scene: Scene) -> None:
    begun = time.monotonic()
    await scene.goes_on(1)
    assert time.monotonic() - begun < STALL_S
    await scene.goes_on()


async def _takes_over(scene: Scene) -> None:
    """What was written back is enough for a successor."""
    scene.kill_dispatcher(await scene.led())
    await scene.goes_on()
    await scene.verify()


async def test_sentinel_promotes_a_replica_that_was_cut_off(vhost: Vhost, open_scene: OpenScene) -> None:
    clause("G-6", "A restart of dispatcher, Redis or RabbitMQ, one at a time, changes no owner")
    with watched_master() as watched:
        scene = await open_scene(_at(vhost, watched.url), POLICY)
        await _killed_without_its_last_writes(scene, watched.master, watched.replica)
        await eventually(lambda: is_master(watched.replica), PROMOTED_S, "the replica to be the master")
        await _goes_on_soon(scene)
        await _takes_over(scene)


async def test_a_cluster_promotes_a_replica_that_was_cut_off(vhost: Vhost, open_scene: OpenScene) -> None:
    with LocalCluster() as cluster:
        scene = await open_scene(_at(vhost, cluster.url()), POLICY)
        key = LaneKeys.of(vhost.redis_prefix, LANE).meta
        primary = cluster.primary(key)
        await _killed_without_its_last_writes(scene, primary, cluster.replica_of(primary))
        await asyncio.to_thread(cluster.primary, key, primary)
        await _goes_on_soon(scene)
        await _takes_over(scene)


async def test_there_and_back_between_masters_that_know_nothing_of_each_other(
    vhost: Vhost, open_scene: OpenScene
) -> None:
    """Each lacks what the other one got, whoever leads."""
    async with contextlib.AsyncExitStack() as running:
        one = running.enter_context(LocalRedis())
        follow = f"replicaof {LOOPBACK} {urlsplit(one.url).port}"
        other = running.enter_context(LocalRedis(config=[follow]))
        await eventually(lambda: is_in_sync(other), what="the replica")
        proxy = await running.enter_async_context(Proxy(one.url))
        scene = await open_scene(_at(vhost, proxy.url), POLICY)
        ask(other, "REPLICAOF", "NO", "ONE")
        await scene.goes_on(UNSEEN)
        for there in (other, one, other, one):
            proxy.point_at(there.url)
            await scene.goes_on(200)
        await _takes_over(scene)
