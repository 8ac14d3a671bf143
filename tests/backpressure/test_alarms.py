"""RabbitMQ is short of memory or disk and blocks everybody who publishes, us and the consumers alike.

Nothing moves, nobody is thought dead for his silence, /readyz, /metrics and the log say why, and it goes on
by itself (G-1 to G-4, G-6, C-6).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from functools import partial

import pytest

from dispatcher.nodes.local_rabbitmq import LocalRabbitMQ
from dispatcher.nodes.servers import MANAGEMENT_VARIABLE, PrivateServers
from tests.backpressure.metrics import memory_kb, metric
from tests.recovery.conftest import OpenScene
from tests.recovery.scene import Scene
from tests.service.harness import LANE, ROOT, DispatcherProcess, private_vhost
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

COMMANDS = (["status"], ["groups", "list", LANE], ["check"])
RSS_GROWTH_KB_MAX = 20_000
#: With what a busy test machine adds.
STOP_S_MAX = 8.0


def _no_memory(node: LocalRabbitMQ) -> None:
    node.control("set_vm_memory_high_watermark", "0.00001")


def _no_disk(node: LocalRabbitMQ) -> None:
    node.control("set_disk_free_limit", "900000GB")


def _enough(node: LocalRabbitMQ) -> None:
    node.control("set_vm_memory_high_watermark", "0.4")
    node.control("set_disk_free_limit", "50MB")


class Stage:
    """A scene whose broker can be made short of something."""

    def __init__(
        self, scene: Scene, servers: PrivateServers, raise_alarm: Callable[[LocalRabbitMQ], None]
    ) -> None:
        self.scene = scene
        self._servers = servers
        self._node = servers.rabbitmq
        self._raise_alarm = raise_alarm

    async def says_blocked(self, dispatcher: DispatcherProcess, *command: str) -> None:
        """The command fails with the reason."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dispatcher", *command, "-c", str(dispatcher.config),
            cwd=ROOT, env={**os.environ, MANAGEMENT_VARIABLE: self._servers.management_url},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out = (await process.communicate())[0].decode()
        assert (process.returncode, "blocks publishers" in " ".join(out.split())) == (1, True), out

    async def alarm(self) -> None:
        await asyncio.to_thread(self._raise_alarm, self._node)

    async def blocked(self, resource: str) -> DispatcherProcess:
        """Wait until the leader says so; returns it."""
        await self.scene.not_ready(f"RabbitMQ blocks publishers: low on {resource}")
        return await self.scene.led()

    async def over(self) -> None:
        await asyncio.to_thread(_enough, self._node)
        await self.scene.goes_on()


async def _nobody_is_thought_dead(stage: Stage, resource: str) -> None:
    await stage.alarm()
    leader = await stage.blocked(resource)
    rss_kb = memory_kb(leader)
    assert await metric(leader, "dispatcher_publishers_blocked") == 1
    assert leader.logged("rabbitmq_blocks_publishers")
    # Longer than consumers may be silent: a blocked command gives up after 5 s.
    await asyncio.gather(*(stage.says_blocked(leader, *command) for command in COMMANDS))
    assert memory_kb(leader) < rss_kb + RSS_GROWTH_KB_MAX
    await stage.over()
    assert await metric(leader, "dispatcher_publishers_blocked") == 0
    assert leader.logged("rabbitmq_unblocked")
    for counter in ("consumers_frozen", "consumers_lost", "consumers_taken", "sent_again"):
        assert await metric(leader, f"dispatcher_{counter}_total") == 0


async def _stands_by_or_is_blocked(dispatcher: DispatcherProcess, resource: str) -> bool:
    answer = await asyncio.to_thread(dispatcher.get, "/readyz")
    return answer in (
        (200, f"{LANE}: standing by\n"),
        (503, f"{LANE}: RabbitMQ blocks publishers: low on {resource}\n"),
    )


async def _leader_and_consumer_die(stage: Stage, resource: str) -> None:
    """RabbitMQ reads nothing from who is blocked: that a connection is gone it notices only in writing to it,
    so the lock may be held until the alarm is over. Whoever gets it before is blocked as well."""
    scene = stage.scene
    await stage.alarm()
    leader = await stage.blocked(resource)
    life = scene.random.choice(scene.living())
    scene.kill_consumer(life)
    scene.kill_dispatcher(leader)
    scene.start_consumer(life.consumer_id)
    leader.start()
    for dispatcher in scene.dispatchers:
        await eventually(partial(_stands_by_or_is_blocked, dispatcher, resource), 15, "a word of the alarm")
    await stage.over()


async def _dispatchers_start(stage: Stage, resource: str) -> None:
    """A new connection is blocked as soon as it publishes something."""
    for dispatcher in stage.scene.dispatchers:
        assert (await asyncio.to_thread(dispatcher.terminate))[0] == 0
    await stage.alarm()
    for dispatcher in stage.scene.dispatchers:
        dispatcher.start()
    await stage.blocked(resource)
    await stage.over()


async def _leader_stops(stage: Stage, resource: str) -> None:
    await stage.alarm()
    leader = await stage.blocked(resource)
    code, took_s = await asyncio.to_thread(leader.terminate)
    assert (code, took_s < STOP_S_MAX) == (0, True), took_s
    leader.start()
    await stage.over()


async def test_short_of_memory_or_disk(private_servers: PrivateServers, open_scene: OpenScene) -> None:
    scene = await open_scene(private_vhost(private_servers), "exclusive")
    stage = Stage(scene, private_servers, _no_memory)
    for act in (_nobody_is_thought_dead, _leader_and_consumer_die, _dispatchers_start, _leader_stops):
        await act(stage, "memory")
    stage = Stage(scene, private_servers, _no_disk)
    await stage.alarm()
    await stage.blocked("disk")
    await stage.over()
    await scene.verify()
