"""Redis is slow, full, or a replica that takes no writes.

Dispatch pauses, /readyz, /metrics and the log say why, nothing is lost, doubled or out of order, and it goes
on by itself (G-1 to G-4, G-6).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from functools import partial

import pytest
import redis

from dispatcher.nodes.local_redis import LocalRedis
from tests.backpressure.metrics import memory_kb, metric
from tests.conftest import Vhost
from tests.recovery.conftest import OpenScene
from tests.recovery.scene import Scene
from tests.redis_store.proxy import Proxy
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

UNAVAILABLE = "dispatcher_redis_unavailable"
RSS_GROWTH_KB_MAX = 20_000
#: Less than redis.timeout, which is 2 s.
STALLS_S = (0.1, 1.5)


@pytest.fixture
def own_redis() -> Iterator[LocalRedis]:
    with LocalRedis() as server:
        yield server


def _set(server: LocalRedis, *command: str) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.execute_command(*command)


@pytest.mark.seed("A25")
async def test_slow(vhost: Vhost, open_scene: OpenScene) -> None:
    """Requests reach Redis late, some of them after their connection was given up."""
    async with Proxy(vhost.redis_url) as proxy:
        scene = await open_scene(dataclasses.replace(vhost, redis_url=proxy.url), "exclusive", dispatchers=1)
        leader = await scene.led()
        rss_kb = memory_kb(leader)
        for stall_s in STALLS_S:
            proxy.hold_requests_after(scene.random.randrange(20_000))
            await asyncio.sleep(stall_s)  # sleeps: how slow Redis is
            proxy.release_requests()
            await scene.goes_on(50)
        for _ in range(2):  # so slow that the outcome is unknown
            proxy.hold_requests_after(scene.random.randrange(20_000))
            await scene.not_ready("did not answer within 2000 ms")
            assert await metric(leader, UNAVAILABLE) == 1
            proxy.release_requests()
            await scene.goes_on(50)
        assert await metric(leader, UNAVAILABLE) == 0
        assert memory_kb(leader) < rss_kb + RSS_GROWTH_KB_MAX
        assert "did not answer within 2000 ms" in leader.logged("redis_unavailable")[-1]["problem"]
        await scene.verify()


async def _refused(scene: Scene, reason: str) -> None:
    """Redis refuses writes: it is said why, also by a dispatcher that starts now."""
    await scene.not_ready(reason)
    leader = await scene.led()
    assert await metric(leader, UNAVAILABLE) == 1
    assert reason in leader.logged("redis_unavailable")[-1]["problem"]
    assert (await asyncio.to_thread(leader.terminate))[0] == 0
    leader.start()
    await eventually(partial(_says, leader, reason), what=f"a start that says {reason}")


def _says(leader: object, reason: str) -> bool:
    status, text = leader.get("/readyz")  # type: ignore[attr-defined]
    return status == 503 and reason in text


async def test_full_and_read_only(vhost: Vhost, own_redis: LocalRedis, open_scene: OpenScene) -> None:
    scene = await open_scene(dataclasses.replace(vhost, redis_url=own_redis.url), "exclusive", dispatchers=1)
    _set(own_redis, "CONFIG", "SET", "maxmemory", "1")
    await _refused(scene, "is full: raise its maxmemory, or free memory (OOM)")
    _set(own_redis, "CONFIG", "SET", "maxmemory", "0")
    await scene.goes_on()
    _set(own_redis, "REPLICAOF", "127.0.0.1", "1")
    await _refused(scene, "is a read-only replica: redis.url must name its master (READONLY)")
    _set(own_redis, "REPLICAOF", "NO", "ONE")
    await scene.goes_on()
    await scene.verify()
