"""`redis.urls` with a master and its replicas: a lane finds the master among them."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from dispatcher.errors import ConfigurationError, StoreUnavailable
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.redis_store import LaneStore, probe
from dispatcher.redis_store.connection import RedisConnection
from dispatcher.settings import RedisSettings
from tests.redis_store.cluster_nodes import ask, port_of
from tests.redis_store.conftest import TIMEOUT_MS, Lane, now_ms
from tests.redis_store.samples import dispatched, entry, step
from tests.redis_store.sentinel_node import is_in_sync
from tests.waiting import eventually, wait_until


class Pair(NamedTuple):
    master: LocalRedis
    replica: LocalRedis

    @property
    def settings(self) -> RedisSettings:
        return RedisSettings(urls=(self.replica.url, self.master.url), timeout_ms=TIMEOUT_MS)


@pytest.fixture
def pair() -> Iterator[Pair]:
    at_once = "repl-diskless-sync-delay 0"
    with (
        LocalRedis(config=[at_once]) as master,
        LocalRedis(config=[at_once, f"replicaof {LOOPBACK} {port_of(master)}"]) as replica,
    ):
        wait_until(lambda: is_in_sync(replica))
        yield Pair(master, replica)


def _follow(server: LocalRedis, master: LocalRedis) -> None:
    ask(server, "REPLICAOF", LOOPBACK, port_of(master))


def _promote(server: LocalRedis) -> None:
    ask(server, "REPLICAOF", "NO", "ONE")


@asynccontextmanager
async def _led(settings: RedisSettings, lane: Lane) -> AsyncIterator[LaneStore]:
    store = await LaneStore.open(settings, "orders", lane.prefix, on_gap=lambda: pytest.fail("a gap"))
    try:
        await store.lead(now_ms(), ["in"])
        await store.confirm_complete()
        yield store
    finally:
        await store.close()


async def _place(settings: RedisSettings) -> Any:
    """Which server it is."""
    connection = await RedisConnection.open(settings, "test", lambda *_: None)
    connection.abort("seen")
    return connection.server["tcp_port"]


async def test_a_lane_goes_on_with_the_replica_that_is_promoted(pair: Pair) -> None:
    lane = Lane(pair.replica.url)
    async with _led(pair.settings, lane) as store:
        await store.commit(step(dispatched(1)))
        ask(pair.master, "WAIT", 1, TIMEOUT_MS)
        pair.master.kill9()
        await eventually(lambda: "is a replica" in (store.problem or ""), what="the replica alone")
        future = store.commit(step(dispatched(2)))
        _promote(pair.replica)
        await future
        assert store.available
    assert (await lane.read()).records == [entry(dispatched(tag)) for tag in (1, 2)]


async def test_a_lane_follows_when_servers_change_their_roles(pair: Pair) -> None:
    """The former master lives, and refuses writes."""
    lane = Lane(pair.replica.url)
    async with _led(pair.settings, lane) as store:
        await store.commit(step(dispatched(1)))
        ask(pair.master, "WAIT", 1, TIMEOUT_MS)
        _promote(pair.replica)
        _follow(pair.master, pair.replica)
        await store.commit(step(dispatched(2)))
    assert (await lane.read()).records == [entry(dispatched(tag)) for tag in (1, 2)]


async def test_of_two_masters_none_is_taken(pair: Pair) -> None:
    """As after a fail-over by hand, when the former master starts again with what it had."""
    assert await _place(pair.settings) == str(port_of(pair.master))
    _promote(pair.replica)
    with pytest.raises(StoreUnavailable, match=r"^redis\.urls: more than one server is a master") as refused:
        await _place(pair.settings)
    for server in pair:
        assert f":{port_of(server)}" in str(refused.value)
    assert await probe(pair.settings, []) == [str(refused.value)]
    _follow(pair.master, pair.replica)
    assert await _place(pair.settings) == str(port_of(pair.replica))


async def test_a_server_that_is_named_twice_is_one(pair: Pair) -> None:
    urls = (pair.master.url, pair.master.url.replace(LOOPBACK, "localhost"))
    assert await _place(RedisSettings(urls=urls)) == str(port_of(pair.master))


async def test_a_server_that_says_nothing_is_passed_over(pair: Pair) -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        urls = (f"redis://{LOOPBACK}:{silent.getsockname()[1]}/0", pair.master.url)
        assert await _place(RedisSettings(urls=urls, timeout_ms=1_000)) == str(port_of(pair.master))


async def test_why_none_of_them_can_be_used() -> None:
    down = tuple(f"redis://{LOOPBACK}:{port}/0" for port in free_ports(2))
    with pytest.raises(StoreUnavailable) as unavailable:
        await _place(RedisSettings(urls=down))
    for url in down:
        assert f"Redis at {url[8:-2]} can't be reached" in str(unavailable.value)
    with LocalRedis(config=["requirepass s3cret"]) as guarded:
        with pytest.raises(StoreUnavailable, match=r"redis\.urls: Redis at .* refuses us: NOAUTH"):
            await _place(RedisSettings(urls=(*down, guarded.url)))  # the master may be one of the others
        settings = RedisSettings(urls=(guarded.url, guarded.url.replace(LOOPBACK, "localhost")))
        with pytest.raises(ConfigurationError, match=r"^redis\.urls: Redis at .* refuses us: NOAUTH"):
            await _place(settings)
        assert [line.partition(": ")[0] for line in await probe(settings, [])] == ["redis.urls"]
