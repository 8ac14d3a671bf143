"""RabbitMQ closes our channel because an original is unacked for longer than its `consumer_timeout`.

That is just another recovery, however often it happens: nothing is lost, doubled or out of order, and what
is being processed stays with its consumer (G-1 to G-4, G-6).
"""

from __future__ import annotations

import asyncio
import signal

import pytest

from dispatcher.nodes.servers import PrivateServers
from tests.recovery.conftest import OpenScene
from tests.service.harness import private_vhost
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TIMEOUT_MS = 3_000
#: How often RabbitMQ looks; 60 s unless set.
TICK_MS = 1_000


def _be_impatient(servers: PrivateServers) -> None:
    """For the connections that come from now on."""
    settings = {"consumer_timeout": TIMEOUT_MS, "channel_tick_interval": TICK_MS}
    acts = [f"application:set_env(rabbit, {name}, {value})" for name, value in settings.items()]
    servers.rabbitmq.evaluate(", ".join(acts))


async def test_originals_held_for_longer(private_servers: PrivateServers, open_scene: OpenScene) -> None:
    """One consumer stands still with messages of both inbound queues, the classic and the quorum queue."""
    await asyncio.to_thread(_be_impatient, private_servers)
    scene = await open_scene(private_vhost(private_servers), "sequenced", dispatchers=1)
    leader = await scene.led()
    slow = scene.living()[0]
    slow.process.send_signal(signal.SIGSTOP)
    try:
        await eventually(lambda: len(leader.logged("lane_interrupted")) >= 2, 60, "closed twice")
        await scene.goes_on()
    finally:
        slow.process.send_signal(signal.SIGCONT)
    await scene.goes_on()
    for interrupted in leader.logged("lane_interrupted"):
        assert interrupted["problem"].startswith("RabbitMQ closed our channel: 406 PRECONDITION_FAILED")
    await scene.verify()
