"""RabbitMQ is restarted under load, in order and by kill -9.

Confirmed messages survive, settles that were confirmed count, owners that are back in time keep their
groups, and acks that a killed broker forgot are given again (G-1 to G-4, G-6).
"""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.nodes.servers import PrivateServers
from tests.recovery.conftest import OpenScene
from tests.service.harness import private_vhost
from tests.spec.lane_bench import clause

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Owners that are back within it keep their groups. Eight processes connect again beside a starting RabbitMQ.
GRACE = "20s"


@pytest.mark.seed("Q10")
async def test_stopped_and_killed(private_servers: PrivateServers, open_scene: OpenScene) -> None:
    clause("G-6", "A restart of dispatcher, Redis or RabbitMQ, one at a time, changes no owner")
    scenes = [
        await open_scene(private_vhost(private_servers), policy, reconnect_grace=GRACE)
        for policy in ("exclusive", "sequenced")
    ]
    rabbitmq = private_servers.rabbitmq
    await asyncio.to_thread(rabbitmq.stop)
    await asyncio.to_thread(rabbitmq.start)
    await asyncio.gather(*(scene.goes_on(timeout_s=60) for scene in scenes))
    await asyncio.to_thread(rabbitmq.sync_definitions)
    await asyncio.to_thread(rabbitmq.kill9)
    await asyncio.to_thread(rabbitmq.start)
    await asyncio.gather(*(scene.goes_on(timeout_s=60) for scene in scenes))
    await asyncio.gather(*(scene.verify() for scene in scenes))
