"""Redis behind Sentinel: a lane goes on with the server that Sentinel names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import redis

from dispatcher.errors import StoreUnavailable
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.redis_store import probe
from dispatcher.redis_store.connection import RedisConnection
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.settings import RedisSettings
from tests.redis_store.sentinel_node import SERVICE, LocalSentinel
from tests.service.harness import Bench, lane
from tests.waiting import eventually, wait_until

KEYS = [LaneKeys.of("dispatch", "orders")]

GROUPS = 5
MESSAGES = 100


class Watched(NamedTuple):
    """A master, its replica and a Sentinel."""

    master: LocalRedis
    replica: LocalRedis
    sentinel: LocalSentinel

    @property
    def url(self) -> str:
        """The first Sentinel is down."""
        return f"redis+sentinel://{LOOPBACK}:{free_ports(1)[0]},{LOOPBACK}:{self.sentinel.port}/{SERVICE}"


@pytest.fixture
def watched() -> Iterator[Watched]:
    with LocalRedis() as master:
        port = master.url.rpartition(":")[2].partition("/")[0]
        with (
            LocalRedis(config=[f"replicaof {LOOPBACK} {port}"]) as replica,
            LocalSentinel(master.url) as sentinel,
        ):
            with redis.Redis(host=LOOPBACK, port=sentinel.port) as client:
                wait_until(lambda: len(client.sentinel_slaves(SERVICE)) == 1, timeout_s=30)
                wait_until(lambda: _is_in_sync(replica), timeout_s=30)
            yield Watched(master, replica, sentinel)


def _is_in_sync(replica: LocalRedis) -> bool:
    with redis.Redis.from_url(replica.url) as client:
        return bool(client.info("replication").get("master_link_status") == "up")


def _is_master(server: LocalRedis) -> bool:
    with redis.Redis.from_url(server.url) as client:
        try:
            return bool(client.info("replication")["role"] == "master")
        except redis.ConnectionError:  # Sentinel ends all connections of a server whose role it changes
            return False


async def _works_over_a_fail_over(bench: Bench, watched: Watched, *, killed: bool) -> None:
    await bench.run(redis_url=watched.url, orders=lane())
    client, consumer = await bench.client(), await bench.joined("one", prefetch=20)
    bodies = [b"%d" % number for number in range(2 * MESSAGES)]
    for number in range(MESSAGES):
        client.send("in", bodies[number], f"g{number % GROUPS}")
    await consumer.has(MESSAGES)
    if killed:
        watched.master.kill9()
    else:
        with redis.Redis(host=LOOPBACK, port=watched.sentinel.port) as asking:
            asking.execute_command("SENTINEL", "FAILOVER", SERVICE)
    await eventually(lambda: _is_master(watched.replica), 30, "the replica to be the master")
    for number in range(MESSAGES, 2 * MESSAGES):
        client.send("in", bodies[number], f"g{number % GROUPS}")
    await consumer.has(2 * MESSAGES, timeout_s=30)
    await bench.acked()
    for group in range(GROUPS):
        assert consumer.bodies(f"g{group}") == bodies[group::GROUPS]
    assert {copy.attempt for copy in consumer.received} == {1}
    with redis.Redis.from_url(watched.replica.url) as asking:
        assert asking.exists(*asking.scan_iter(f"*{bench.vhost.redis_prefix}*"))


@pytest.mark.timeout(120)
async def test_a_lane_goes_on_when_the_master_is_killed(bench: Bench, watched: Watched) -> None:
    await _works_over_a_fail_over(bench, watched, killed=True)


@pytest.mark.timeout(120)
async def test_a_lane_goes_on_when_operators_move_the_master(bench: Bench, watched: Watched) -> None:
    """The former one lives, and follows the new one."""
    await _works_over_a_fail_over(bench, watched, killed=False)


async def test_what_sentinel_does_not_know_is_said(watched: Watched) -> None:
    url = watched.url.replace(f"/{SERVICE}", "/other")
    with pytest.raises(StoreUnavailable, match=r"no Redis Sentinel of .* names a master for 'other'"):
        await RedisConnection.open(RedisSettings(url=url), "test", lambda *_: None)
    (problem,) = await probe(RedisSettings(url=url), KEYS)
    assert problem.startswith("redis.url: no Redis Sentinel of ")
    assert await probe(RedisSettings(url=watched.url), KEYS) == []
