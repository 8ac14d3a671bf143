"""Redis goes away under load and comes back: with its data, with older data, or empty.

Dispatch pauses meanwhile and goes on by itself; memory is written back (G-1 to G-4, G-6).
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator

import pytest
import redis

from dispatcher.judge.judge import Forgotten
from dispatcher.nodes.local_redis import LocalRedis
from tests.conftest import Vhost
from tests.recovery.conftest import OpenScene
from tests.recovery.scene import Scene
from tests.spec.lane_bench import clause

#: An ack may be on its way to the broker for this long after its message was handled, on a busy machine.
ACK_DELAY_S = 5.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def own_redis() -> Iterator[LocalRedis]:
    with LocalRedis() as server:
        yield server


@pytest.fixture
def forgetful_redis() -> Iterator[LocalRedis]:
    """Keeps only what SAVE was told to keep."""
    with LocalRedis(append_only=False) as server:
        yield server


def _with(vhost: Vhost, server: LocalRedis) -> Vhost:
    return dataclasses.replace(vhost, redis_url=server.url)


async def _away(scene: Scene, server: LocalRedis) -> None:
    """Redis is killed; wait until the leader says so and nothing is handed over any more."""
    await asyncio.to_thread(server.kill9)
    await scene.not_ready("Redis")


async def _without_memory(scene: Scene, server: LocalRedis, *, empty: bool) -> None:
    """All dispatchers are dead while Redis loses what it had. One of them starts again.

    It recovers from what the consumers hold. A settle whose original was not acked yet is forgotten: two
    failures at once are more than G-4 promises, and the message is handed over again, in order.
    """
    killed_at = time.monotonic()
    for dispatcher in scene.dispatchers:
        scene.kill_dispatcher(dispatcher)
    await asyncio.to_thread(server.kill9)
    if empty:
        server.wipe()
    await asyncio.to_thread(server.start)
    begun = time.monotonic()
    scene.dispatchers[0].start()
    await scene.led()
    # We read late in its log that it leads: it may have begun before.
    for until in (begun, time.monotonic()):
        scene.forgotten.append(Forgotten(killed_at - ACK_DELAY_S, until, begun))
    await scene.goes_on()


async def _back(scene: Scene, server: LocalRedis) -> None:
    await asyncio.to_thread(server.start)
    await scene.goes_on()


@pytest.mark.seed("A25", "Q10")
@pytest.mark.parametrize("policy", ["exclusive", "sequenced"])
async def test_back_with_its_data_and_then_empty(
    vhost: Vhost, own_redis: LocalRedis, open_scene: OpenScene, policy: str
) -> None:
    clause("G-6", "A restart of dispatcher, Redis or RabbitMQ, one at a time, changes no owner")
    scene = await open_scene(_with(vhost, own_redis), policy)
    await asyncio.to_thread(own_redis.stop)
    await scene.not_ready("Redis")
    await _back(scene, own_redis)
    await _away(scene, own_redis)
    await _back(scene, own_redis)
    await _away(scene, own_redis)
    own_redis.wipe()
    await _back(scene, own_redis)
    with redis.Redis.from_url(own_redis.url) as client:
        client.flushall()
    await scene.goes_on()
    # What was written back is enough for a successor.
    leader = await scene.led()
    scene.kill_dispatcher(leader)
    await scene.goes_on()
    await _without_memory(scene, own_redis, empty=True)
    await scene.verify()


@pytest.mark.parametrize("policy", ["exclusive", "sequenced"])
async def test_back_with_older_data(
    vhost: Vhost, forgetful_redis: LocalRedis, open_scene: OpenScene, policy: str
) -> None:
    scene = await open_scene(_with(vhost, forgetful_redis), policy)
    with redis.Redis.from_url(forgetful_redis.url) as client:
        client.save()
    await scene.goes_on(150)
    await _away(scene, forgetful_redis)
    await _back(scene, forgetful_redis)
    leader = await scene.led()
    scene.kill_dispatcher(leader)
    await scene.goes_on()
    # The journal says less than happened: what the consumers hold counts, the rest as when it is empty.
    with redis.Redis.from_url(forgetful_redis.url) as client:
        client.save()
    await scene.goes_on(150)
    await _without_memory(scene, forgetful_redis, empty=False)
    await scene.verify()
