"""RabbitMQ is short of memory or disk and blocks everybody who publishes, us and the consumers alike.

Nothing moves, nobody is thought dead for his silence, /readyz, /metrics and the log say why, and it goes on
by itself (G-1 to G-4, G-6, C-6).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import pytest

from dispatcher.nodes.servers import MANAGEMENT_VARIABLE, PrivateServers
from tests.backpressure.metrics import memory_kb, metric
from tests.recovery.conftest import OpenScene
from tests.recovery.scene import Scene
from tests.service.harness import LANE, ROOT, STOP_S_MAX, DispatcherProcess, private_vhost
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COMMANDS = (["status"], ["groups", "list", LANE], ["check"])
RSS_GROWTH_KB_MAX = 20_000


class Resource(NamedTuple):
    """What a node can run out of: what sets its limit, a limit that nothing keeps, a usual one."""

    name: str
    function: str
    none: str
    enough: str


MEMORY = Resource("memory", "vm_memory_monitor:set_vm_memory_high_watermark", "0.00001", "0.4")
DISK = Resource("disk", "rabbit_disk_monitor:set_disk_free_limit", '"900000GB"', '"50MB"')


class Stage:
    """A scene whose broker can be made short of something."""

    def __init__(self, scene: Scene, servers: PrivateServers, resource: Resource) -> None:
        self.scene = scene
        self._servers = servers
        self._resource = resource

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
        await self._limit(self._resource.none)

    async def blocked(self) -> DispatcherProcess:
        """Wait until the leader says so; returns it."""
        await self.scene.not_ready(f"RabbitMQ blocks publishers: low on {self._resource.name}")
        return await self.scene.led()

    async def stands_by_or_is_blocked(self, dispatcher: DispatcherProcess) -> bool:
        return await asyncio.to_thread(dispatcher.get, "/readyz") in (
            (200, f"{LANE}: standing by\n"),
            (503, f"{LANE}: RabbitMQ blocks publishers: low on {self._resource.name}\n"),
        )

    async def over(self) -> None:
        await self._limit(self._resource.enough)
        await self.scene.goes_on()

    async def _limit(self, limit: str) -> None:
        await asyncio.to_thread(self._servers.rabbitmq.evaluate, f"{self._resource.function}({limit})")


async def _nobody_is_thought_dead(
    stage: Stage, *others: Scene, commands: Sequence[list[str]] = COMMANDS
) -> None:
    """Neither here nor in other scenes on the same node."""
    for scene in (stage.scene, *others):
        await scene.all_live()  # who was killed before is taken back by now
    await stage.alarm()
    leader = await stage.blocked()
    leaders = {stage.scene: leader, **{scene: await scene.led() for scene in others}}
    for scene in others:
        await scene.not_ready("RabbitMQ blocks publishers")
    rss_kb = {led: memory_kb(led) for led in leaders.values()}
    counted = {led: await _deaths(led) for led in leaders.values()}
    for led in leaders.values():
        assert await metric(led, "dispatcher_publishers_blocked") == 1
        assert led.logged("rabbitmq_blocks_publishers")
    # Longer than consumers may be silent: a blocked command gives up after 5 s.
    await asyncio.gather(*(stage.says_blocked(leader, *command) for command in commands))
    for led, before_kb in rss_kb.items():
        assert memory_kb(led) < before_kb + RSS_GROWTH_KB_MAX
    await stage.over()
    for scene, led in leaders.items():
        await scene.goes_on()
        assert await scene.led() is led
        assert await metric(led, "dispatcher_publishers_blocked") == 0
        assert led.logged("rabbitmq_unblocked")
        assert await _deaths(led) == counted[led]


async def _deaths(leader: DispatcherProcess) -> list[float]:
    names = ("consumers_frozen", "consumers_lost", "consumers_taken", "sent_again")
    return [await metric(leader, f"dispatcher_{name}_total") for name in names]


async def _leader_and_consumer_die(stage: Stage) -> None:
    """RabbitMQ reads nothing from who is blocked: that a connection is gone it notices only in writing to it,
    so the lock may be held until the alarm is over. Whoever gets it before is blocked as well."""
    scene = stage.scene
    await stage.alarm()
    leader = await stage.blocked()
    life = scene.random.choice(scene.living())
    scene.kill_consumer(life)
    scene.kill_dispatcher(leader)
    scene.start_consumer(life.consumer_id)
    leader.start()
    for dispatcher in scene.dispatchers:
        await eventually(partial(stage.stands_by_or_is_blocked, dispatcher), what="a word of the alarm")
    await stage.over()


async def _dispatchers_start(stage: Stage) -> None:
    """A new connection is blocked as soon as it publishes something."""
    for dispatcher in stage.scene.dispatchers:
        assert (await asyncio.to_thread(dispatcher.terminate))[0] == 0
    await stage.alarm()
    for dispatcher in stage.scene.dispatchers:
        dispatcher.start()
    await stage.blocked()
    await stage.over()


async def _leader_stops(stage: Stage) -> None:
    await stage.alarm()
    leader = await stage.blocked()
    code, took_s = await asyncio.to_thread(leader.terminate)
    assert (code, took_s < STOP_S_MAX) == (0, True), took_s
    leader.start()
    await stage.over()


async def test_short_of_memory_or_disk(private_servers: PrivateServers, open_scene: OpenScene) -> None:
    exclusive = await open_scene(private_vhost(private_servers), "exclusive")
    stage = Stage(exclusive, private_servers, MEMORY)
    for act in (_nobody_is_thought_dead, _leader_and_consumer_die, _dispatchers_start, _leader_stops):
        await act(stage)
    sequenced = await open_scene(private_vhost(private_servers), "sequenced")
    disk = Stage(sequenced, private_servers, DISK)
    await _nobody_is_thought_dead(disk, exclusive, commands=COMMANDS[:1])
    await asyncio.gather(exclusive.verify(), sequenced.verify())
