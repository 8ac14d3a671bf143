"""A policy limits the consumers' queues, and RabbitMQ refuses copies (`reject-publish`).

Nothing is lost, doubled or out of order, it goes on when there is room again, and a queue that is too small
for good keeps nobody busy (C-7).
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.backpressure.metrics import metric
from tests.conftest import Vhost
from tests.recovery.conftest import OpenScene
from tests.service.harness import DispatcherProcess
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REFUSED = "dispatcher_consumers_refused_total"
ROUNDS = 3


def _limit(vhost: Vhost) -> None:
    """RabbitMQ hands everything on at once to a consumer that acks nothing: only 0 makes it full."""
    definition = {"max-length": 0, "overflow": "reject-publish"}
    body = {"pattern": "^amq[.]gen-", "apply-to": "queues", "definition": definition}
    vhost.management(f"policies/{vhost.name}/full", "PUT", body)


def _unlimit(vhost: Vhost) -> None:
    vhost.management(f"policies/{vhost.name}/full", "DELETE")


async def _rises(leader: DispatcherProcess, before: float) -> bool:
    return await metric(leader, REFUSED) > before


async def test_no_room_at_all_for_a_while(vhost: Vhost, open_scene: OpenScene) -> None:
    """No consumer can be given anything, not even the wish to join again."""
    scene = await open_scene(vhost, "exclusive", dispatchers=1)
    leader = await scene.led()
    _limit(vhost)
    everybody = len(scene.lives)
    await eventually(lambda: len(leader.logged("consumer_refused")) == everybody, what="all refuse")
    await asyncio.sleep(1)  # sleeps: a hot loop would show in the counters
    assert await metric(leader, "dispatcher_sent_again_total") == 0
    assert await metric(leader, REFUSED) == everybody
    _unlimit(vhost)
    await scene.all_live()
    for _ in range(ROUNDS):
        refused = await metric(leader, REFUSED)
        _limit(vhost)
        await eventually(partial(_rises, leader, refused), what="somebody refuses")
        _unlimit(vhost)
        await scene.all_live()  # who refuses already can't refuse in the next round
    await scene.verify()
    assert leader.logged("consumer_lost") == []
