"""Everything that the other tests do to the system, in random order for as long as one likes.

    DISPATCHER_SOAK_S=600 scripts/test tests/recovery/test_soak.py

One thing at a time, as the guarantees say: the next comes when messages flow again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from dispatcher.nodes.servers import PrivateServers
from tests.recovery.conftest import OpenScene
from tests.recovery.scene import KINDS, Scene
from tests.service.harness import private_vhost

SOAK_S = float(os.environ.get("DISPATCHER_SOAK_S", "0"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(SOAK_S + 300),
    pytest.mark.skipif(not SOAK_S, reason="set DISPATCHER_SOAK_S to soak"),
]


class Harm:
    """What can be done to a system. Each leaves it to recover by itself."""

    def __init__(self, scene: Scene, servers: PrivateServers) -> None:
        self._scene = scene
        self._servers = servers
        rare, common = (self.restart_rabbitmq, self.kill_rabbitmq), (
            self.kill_leader, self.kill_standby, self.kill_consumer, self.stop_consumer, self.freeze_consumer,
            self.restart_redis, self.empty_redis, self.stop_leader,
        )  # fmt: skip
        self.choices = [*rare, *common * 3]

    async def kill_leader(self) -> None:
        leader = await self._scene.led()
        self._scene.kill_dispatcher(leader)
        leader.start()

    async def stop_leader(self) -> None:
        leader = await self._scene.led()
        code, _ = await asyncio.to_thread(leader.terminate, 30)
        assert code == 0, leader.log()[-2000:]
        leader.start()

    async def kill_standby(self) -> None:
        leader = await self._scene.led()
        standby = next(d for d in self._scene.dispatchers if d is not leader)
        standby.kill9()
        standby.start()

    async def kill_consumer(self) -> None:
        life = self._scene.random.choice(self._scene.living())
        self._scene.kill_consumer(life)
        self._scene.start_consumer(life.consumer_id, self._scene.random.choice(["async", "blocking"]))

    async def stop_consumer(self) -> None:
        life = self._scene.random.choice(self._scene.living())
        await self._scene.stop_consumer(life)
        self._scene.start_consumer(life.consumer_id, self._scene.random.choice(["async", "blocking"]))

    async def freeze_consumer(self) -> None:
        life = self._scene.random.choice(self._scene.living())
        life.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self._scene.random.uniform(0.5, 5.0))  # sleeps: frozen, shorter than any time-out
        life.process.send_signal(signal.SIGCONT)

    async def restart_redis(self) -> None:
        await asyncio.to_thread(self._servers.redis.kill9)
        await asyncio.to_thread(self._servers.redis.start)

    async def empty_redis(self) -> None:
        await asyncio.to_thread(self._servers.redis.kill9)
        self._servers.redis.wipe()
        await asyncio.to_thread(self._servers.redis.start)

    async def restart_rabbitmq(self) -> None:
        await asyncio.to_thread(self._servers.rabbitmq.stop)
        await asyncio.to_thread(self._servers.rabbitmq.start)

    async def kill_rabbitmq(self) -> None:
        await asyncio.to_thread(self._servers.rabbitmq.sync_definitions)
        await asyncio.to_thread(self._servers.rabbitmq.kill9)
        await asyncio.to_thread(self._servers.rabbitmq.start)


@pytest.mark.parametrize("policy", ["exclusive", "sequenced"])
async def test_soak(private_servers: PrivateServers, open_scene: OpenScene, policy: str) -> None:
    scene = await open_scene(private_vhost(private_servers), policy)
    harm = Harm(scene, private_servers)
    until = time.monotonic() + SOAK_S
    while time.monotonic() < until:
        act = scene.random.choice(harm.choices)
        print(f"{time.monotonic():.3f} {act.__name__}", flush=True)
        await act()
        await scene.led()
        await scene.has_consumers(len(KINDS))
        await scene.goes_on(scene.random.randrange(50, 400), timeout_s=60)
    await scene.verify()
    print(f"{len(scene.record())} handlings")
