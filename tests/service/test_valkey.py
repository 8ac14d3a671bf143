"""Valkey in the place of Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.nodes.process import GuardedProcess
from dispatcher.redis_store import probe
from dispatcher.settings import RedisSettings
from tests.service.harness import Bench, lane
from tests.trixie import trixie_folder
from tests.waiting import eventually

GROUPS = 5
MESSAGES = 100


class LocalValkey(LocalRedis):
    """It reads Redis' configuration."""

    name = "valkey"

    def _command(self, process: GuardedProcess) -> tuple[list[str], dict[str, str]]:
        (_, config), environment = super()._command(process)
        return [str(trixie_folder() / "usr/bin/valkey-server"), config], environment


@pytest.fixture
def valkey() -> Iterator[LocalValkey]:
    with LocalValkey() as server:
        yield server


async def test_a_lane_keeps_its_order_over_a_valkey_that_forgets(bench: Bench, valkey: LocalValkey) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        assert client.info("server")["server_name"] == "valkey"
    await bench.run(redis_url=valkey.url, orders=lane(dedup={"window": "1m"}, sequence_check="report"))
    sender, consumer = await bench.client(), await bench.joined("one", prefetch=20)
    bodies = [b"%d" % number for number in range(2 * MESSAGES)]
    for number in range(MESSAGES):
        sender.send("in", bodies[number], f"g{number % GROUPS}")
    await consumer.has(MESSAGES)
    valkey.kill9()
    valkey.wipe()
    await eventually(lambda: not bench.runners["orders"].readiness()[0], what="the outage to be noticed")
    for number in range(MESSAGES, 2 * MESSAGES):
        sender.send("in", bodies[number], f"g{number % GROUPS}")
    valkey.start()
    await consumer.has(2 * MESSAGES)
    await bench.acked()
    for group in range(GROUPS):
        assert consumer.bodies(f"g{group}") == bodies[group::GROUPS]
    await bench.crash()
    assert await probe(RedisSettings(url=valkey.url), []) == []
