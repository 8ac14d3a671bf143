"""A lane on a Redis Cluster: its keys are on one node, and it follows them wherever they go."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from dispatcher.errors import ConfigurationError, StoreUnavailable
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.redis_store import LaneStore, probe
from dispatcher.redis_store.cluster import first_answer, primary_in, slot_of
from dispatcher.redis_store.connection import RedisConnection
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.settings import RedisSettings
from tests.chaos.fail_overs import ELECTED, times_said
from tests.redis_store.cluster_nodes import LocalCluster, ask, port_of, stopped
from tests.redis_store.conftest import Lane
from tests.redis_store.samples import dispatched, entry, step
from tests.redis_store.test_lost_writes import answer_gaps_with, assert_holds, whole_state, write_state
from tests.waiting import eventually, wait_until

#: What an outage may last beyond the moment in which the new primary is there.
STALL_S = 5.0

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def _cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(_cluster: LocalCluster) -> Iterator[LocalCluster]:
    yield _cluster
    for node in _cluster.nodes:
        node.start()
    wait_until(_cluster.is_ready, what="the cluster")


@pytest.fixture
async def lane(cluster: LocalCluster) -> AsyncIterator[Lane]:
    lane = Lane(cluster.url())
    yield lane
    await lane._running.aclose()


@pytest.mark.parametrize("key", ["123456789", "", "{foo}:x", "x{foo}{y}", "{}foo", "x{", "}x{a}", "{é}:meta"])
def test_slots_are_those_of_redis(key: str, cluster: LocalCluster) -> None:
    assert slot_of(key) == ask(cluster.nodes[0], "CLUSTER KEYSLOT", key)


def test_all_keys_of_a_lane_are_in_one_slot() -> None:
    assert len({slot_of(key) for key in LaneKeys.of("dispatch", "orders.eu").all()}) == 1


def test_an_address_that_a_node_does_not_know_is_that_of_the_node_that_was_asked() -> None:
    slots = [
        [0, 99, [b"a", 1, b"id"]],
        [100, 199, [b"", 2, b"id"]],
        [200, 299, [None, 3]],
        [300, 399, [b"?", 4]],
    ]
    assert [primary_in(slots, slot) for slot in (99, 100, 250, 300, 400)] == [
        ("a", 1), ("", 2), ("", 3), ("", 4), None,
    ]  # fmt: skip


async def _fails(error: Exception) -> int:
    raise error


async def test_the_first_that_answers_counts_and_else_what_has_to_be_changed() -> None:
    async def answers() -> int:
        return 7

    away, wrong = StoreUnavailable("away"), ConfigurationError("wrong")
    assert await first_answer([lambda: _fails(away), lambda: _fails(wrong), answers]) == 7
    with pytest.raises(ConfigurationError, match="wrong"):
        await first_answer([lambda: _fails(away), lambda: _fails(wrong)])
    with pytest.raises(StoreUnavailable, match="away; gone"):
        await first_answer([lambda: _fails(StoreUnavailable("gone")), lambda: _fails(away)])


async def test_lanes_find_the_nodes_that_have_their_keys(cluster: LocalCluster) -> None:
    lanes = [Lane(cluster.url()) for _ in range(8)]
    for lane in lanes:
        store = await lane.lead()
        await store.commit(step(dispatched(1)))
        assert ask(cluster.primary(lane.keys.meta), "HGET", lane.keys.meta, "ordinal") == b"2"
        await lane._running.aclose()
    assert len({cluster.primary(lane.keys.meta) for lane in lanes}) > 1
    assert await probe(RedisSettings(url=cluster.url()), [lane.keys for lane in lanes]) == []


async def test_nodes_that_are_away_or_hang_are_passed_over(cluster: LocalCluster, lane: Lane) -> None:
    works, hangs = cluster.others(cluster.primary(lane.keys.meta))[:2]
    gone = f"redis+cluster://{LOOPBACK}:{free_ports(1)[0]},{LOOPBACK}:{port_of(hangs)},{LOOPBACK}:{port_of(works)}"
    with stopped(hangs):
        store = await lane.open(gone, timeout_ms=5_000)
    assert store.available


async def test_nodes_in_a_list(cluster: LocalCluster, lane: Lane) -> None:
    primary = cluster.primary(lane.keys.meta)
    urls = tuple(cluster.url(node) for node in cluster.others(primary)[:2])
    connection = await RedisConnection.open(RedisSettings(urls=urls), "test", lambda *_: None, lane.keys.meta)
    connection.abort("seen")
    assert connection.server["tcp_port"] == str(port_of(primary))


async def test_what_is_no_cluster_is_said(own_redis: LocalRedis, cluster: LocalCluster, lane: Lane) -> None:
    plain = own_redis.url.replace("redis:", "redis+cluster:")
    with pytest.raises(ConfigurationError, match=r"is not in cluster mode: the URL must begin with redis://"):
        await lane.open(plain)
    with pytest.raises(ConfigurationError, match=r"name the cluster instead: redis\+cluster://"):
        await lane.open(cluster.nodes[0].url)


async def _stall_s(lane: Lane, cluster: LocalCluster, old: LocalRedis, store: LaneStore) -> float:
    cluster.primary(lane.keys.meta, but=old)
    begun = time.monotonic()
    await eventually(lambda: store.available and not store.pending, what="the commit")
    return time.monotonic() - begun


async def test_a_primary_is_killed(cluster: LocalCluster, lane: Lane) -> None:
    store = await lane.lead()
    await write_state(store, whole_state())
    primary = cluster.primary(lane.keys.meta)
    ask(primary, "WAIT", 1, 5_000)
    elected = times_said(ELECTED, cluster.nodes)
    primary.kill9()
    store.commit(step(dispatched(3)))
    assert await _stall_s(lane, cluster, primary, store) < STALL_S
    assert times_said(ELECTED, cluster.nodes) == elected + 1  # chaos counts them
    assert lane.gaps == []
    assert (await lane.read()).records == [entry(dispatched(tag)) for tag in (1, 2, 3)]


async def test_operators_move_a_primary(cluster: LocalCluster, lane: Lane) -> None:
    store = await lane.lead()
    await write_state(store, whole_state())
    primary = cluster.primary(lane.keys.meta)
    cluster.fail_over(primary)
    cluster.primary(lane.keys.meta, but=primary)
    future = store.commit(step())
    assert await _stall_s(lane, cluster, primary, store) < STALL_S
    await future
    assert lane.gaps == []
    assert (await lane.read()).records == [entry(dispatched(tag)) for tag in (1, 2)]


async def test_a_replica_that_was_cut_off_is_promoted(cluster: LocalCluster, lane: Lane) -> None:
    """Everything since is lost: the leader notices, and writes it again."""
    store = await lane.lead()
    await store.commit(step(dispatched(9)))
    primary = cluster.primary(lane.keys.meta)
    replica = cluster.replica_of(primary)
    ask(primary, "WAIT", 1, 5_000)
    with stopped(replica):
        ask(primary, "CLIENT", "KILL", "TYPE", "replica")
        await write_state(store, state := whole_state())
        answer_gaps_with(lane, state)
        primary.kill9()
    store.commit(step())
    assert await _stall_s(lane, cluster, primary, store) < STALL_S
    assert len(lane.gaps) == 1
    await assert_holds(lane, state)


async def test_the_keys_move_to_another_node(cluster: LocalCluster, lane: Lane) -> None:
    store = await lane.lead()
    await write_state(store, whole_state())
    slot = slot_of(lane.keys.meta)
    source = cluster.primary(lane.keys.meta)
    target = next(
        node for node in cluster.others(source) if ask(node, "INFO", "replication")["role"] == "master"
    )
    ids = [ask(node, "CLUSTER MYID").decode() for node in (source, target)]
    with redis.Redis.from_url(source.url) as client:
        keys = [key for key in lane.keys.all() if client.exists(key)]
    ask(target, "CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
    ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
    future = store.commit(step(dispatched(3)))
    with redis.Redis.from_url(source.url) as client:
        client.migrate(LOOPBACK, port_of(target), keys, 0, 5_000)
    assert not future.done(), "the lane waits while its keys move"
    for node in (target, source):
        ask(node, "CLUSTER SETSLOT", slot, "NODE", ids[1])
    await future
    assert lane.gaps == []
    snapshot = await lane.read()
    assert entry(dispatched(3)) in snapshot.records
    assert cluster.primary(lane.keys.meta) is target
