"""Redis behind Sentinel: a lane goes on with the server that Sentinel names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from dispatcher.errors import StoreUnavailable
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.redis_store import probe
from dispatcher.redis_store.connection import RedisConnection
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.settings import RedisSettings
from tests.redis_store.cluster_nodes import port_of
from tests.redis_store.sentinel_node import PROMOTED_S, SERVICE, Watched, is_master, watched_master
from tests.service.harness import Bench, lane
from tests.waiting import eventually

KEYS = [LaneKeys.of("dispatch", "orders")]

GROUPS = 5
MESSAGES = 100


@pytest.fixture
def watched() -> Iterator[Watched]:
    with watched_master() as servers:
        yield servers


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
    await eventually(lambda: is_master(watched.replica), PROMOTED_S, "the replica to be the master")
    for number in range(MESSAGES, 2 * MESSAGES):
        client.send("in", bodies[number], f"g{number % GROUPS}")
    await consumer.has(2 * MESSAGES)
    await bench.acked()
    for group in range(GROUPS):
        assert consumer.bodies(f"g{group}") == bodies[group::GROUPS]
    assert {copy.attempt for copy in consumer.received} == {1}
    with redis.Redis.from_url(watched.replica.url) as asking:
        assert asking.exists(*asking.scan_iter(f"*{bench.vhost.redis_prefix}*"))


@pytest.mark.timeout(600)
async def test_a_lane_goes_on_when_the_master_is_killed(bench: Bench, watched: Watched) -> None:
    await _works_over_a_fail_over(bench, watched, killed=True)


@pytest.mark.timeout(600)
async def test_a_lane_goes_on_when_operators_move_the_master(bench: Bench, watched: Watched) -> None:
    """The former one lives, and follows the new one."""
    await _works_over_a_fail_over(bench, watched, killed=False)


async def test_sentinels_in_a_list(watched: Watched) -> None:
    places = (free_ports(1)[0], watched.sentinel.port)
    down, up = (f"redis+sentinel://{LOOPBACK}:{port}/{SERVICE}" for port in places)
    for urls in ((down, up), (up,)):
        connection = await RedisConnection.open(RedisSettings(urls=urls), "test", lambda *_: None)
        connection.abort("seen")
        assert connection.server["tcp_port"] == str(port_of(watched.master))


async def test_what_sentinel_does_not_know_is_said(watched: Watched) -> None:
    url = watched.url.replace(f"/{SERVICE}", "/other")
    with pytest.raises(StoreUnavailable, match=r"no Redis Sentinel of .* names a master for 'other'"):
        await RedisConnection.open(RedisSettings(url=url), "test", lambda *_: None)
    (problem,) = await probe(RedisSettings(url=url), KEYS)
    assert problem.startswith("redis.url: no Redis Sentinel of ")
    assert await probe(RedisSettings(url=watched.url), KEYS) == []
