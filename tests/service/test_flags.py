"""What operators pause, pin and drain, end to end (docs/semantics.md, O-21 to O-24)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
import redis
from structlog.testing import capture_logs

from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.redis_store.scripts import LaneKeys
from tests.service.conftest import Starter
from tests.service.harness import LANE, Bench, lane
from tests.service.program import program
from tests.waiting import eventually


@pytest.fixture
def own_redis() -> Iterator[LocalRedis]:
    with LocalRedis() as server:
        yield server


async def operator(bench: Bench, *arguments: str) -> str:
    """What the program prints for a command that is done."""
    result = await program(bench.vhost, *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


async def held(bench: Bench, count: int) -> None:
    """Wait until so many originals wait."""

    async def so_many() -> bool:
        return bool((await bench.ask("status"))["held"] == count)

    await eventually(so_many, what=f"{count} that wait")


async def test_they_hold_when_the_leader_is_killed(bench: Bench, dispatcher_process: Starter) -> None:
    one = dispatcher_process("one", orders=lane())
    await asyncio.to_thread(one.ready)
    client = await bench.client()
    first, second = await bench.joined("c1"), await bench.joined("c2")
    client.send("in", b"1", "a")
    client.send("in", b"1", "b")
    await eventually(lambda: len(first.received) + len(second.received) == 2)
    assert await operator(bench, "groups", "pause", "orders", "a") == "a: paused; 0 messages in flight\n"
    assert (await operator(bench, "groups", "pin", "orders", "b", "c1")).startswith("b: pinned to c1")
    assert (
        await operator(bench, "consumers", "drain", "orders", "c2") == "c2: drained; 0 messages in flight\n"
    )
    assert (
        await operator(bench, "groups", "pause", "orders", "--all")
        == "orders: paused; 0 messages in flight\n"
    )
    one.kill9()

    two = dispatcher_process("two", orders=lane())
    await asyncio.to_thread(two.ready)
    for group in "abc":
        client.send("in", b"2", group)
    await held(bench, 3)
    _, metrics = await asyncio.to_thread(two.get, "/metrics")
    for name in ("lane_paused", "groups_paused", "groups_pinned", "consumers_drained"):
        assert f'dispatcher_{name}{{lane="orders"}} 1.0' in metrics
    assert await operator(bench, "groups", "resume", "orders", "--all") == "orders: goes on\n"
    await eventually(
        lambda: {(b"b", b"2"), (b"c", b"2")} <= {(copy.group, copy.body) for copy in first.received}
    )
    assert "a: Paused by an operator" in await operator(bench, "groups", "why", "orders", "a")
    assert await operator(bench, "groups", "resume", "orders", "a") == "a: goes on\n"
    await held(bench, 0)
    assert [copy.body for copy in second.received if copy.body != b"1"] == [], "c2 is still drained"


async def test_they_are_written_back_to_an_empty_redis(bench: Bench, own_redis: LocalRedis) -> None:
    await bench.run(redis_url=own_redis.url, orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1")
    client.send("in", b"1", "g")
    await consumer.has(1)
    await bench.ask("groups.pause", group="g")
    await bench.ask("groups.pause", all=True)
    key = LaneKeys.of(bench.vhost.redis_prefix, LANE).flags
    with redis.Redis.from_url(own_redis.url) as store:
        flags = store.hgetall(key)
        store.flushall()
        assert set(flags) == {b"lane", b"group:g"}
        await bench.ask("consumers.drain", consumer="c1")  # a commit, by which the leader sees it
        await eventually(lambda: len(store.hgetall(key)) == 3, what="the flags to be written back")
        assert {name: row for name, row in store.hgetall(key).items() if name in flags} == flags
    await bench.crash()
    await bench.run(redis_url=own_redis.url, orders=lane())
    status = bench.status()
    assert (status["paused"], status["groups_paused"], status["consumers_drained"]) == (True, 1, 1)


@pytest.mark.seed("A28")
async def test_a_pinned_group_waits_for_its_consumer(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    first = await bench.joined("c1", hold=True)
    client.send("in", b"1", "g")
    await first.has(1)
    second = await bench.joined("c2")
    printed = await operator(bench, "groups", "pin", "orders", "g", "c2")
    assert printed == "g: pinned to c2; goes there when c1 has settled 1 message\n"
    client.send("in", b"2", "g")
    await held(bench, 1)
    first.release()
    await second.has(1)
    await bench.acked()
    await second.drop()
    client.send("in", b"3", "g")
    await eventually(lambda: bench.counter("consumers_taken") == 1)
    why = await bench.ask("groups.why", group="g")
    assert (why["reason"], why["facts"]["pin"]) == ("pinned_absent", "c2")
    listed = json.loads(await operator(bench, "groups", "list", "orders", "--json"))
    assert [(row["group"], row["pin"], row["held"]) for row in listed["groups"]] == [("g", "c2", 1)]
    again = await bench.joined("c2")
    assert [copy.body for copy in await again.has(1)] == [b"3"]
    assert await operator(bench, "groups", "pin", "orders", "g", "--undo") == "g: no longer pinned\n"
    assert len(first.received) == 1


async def test_a_drained_consumer_settles_what_it_has(bench: Bench) -> None:
    with capture_logs() as logged:
        await bench.run(orders=lane())
        client = await bench.client()
        drained = await bench.joined("c1", hold=True)
        client.send("in", b"1", "g")
        client.send("in", b"1", "h")
        await drained.has(2)
        other = await bench.joined("c2")
        printed = await operator(bench, "consumers", "drain", "orders", "c1")
        assert printed == "c1: drained; 2 messages in flight\n"
        assert "live, drained" in await operator(bench, "consumers", "list", "orders")
        for group in "ghi":
            client.send("in", b"2", group)
        assert [copy.group for copy in await other.has(1)] == [b"i"]
        drained.release()
        await other.has(3)
        await bench.acked()
        await bench.ask("consumers.drain", consumer="c1", undo=True)
        client.send("in", b"3", "new")
        await drained.has(3)
    assert [copy.body for copy in drained.received] == [b"1", b"1", b"3"]
    assert {copy.attempt for copy in [*drained.received, *other.received]} == {1}
    events = [record["event"] for record in logged]
    assert events.index("consumer_drained") < events.index("consumer_undrained")


async def test_what_is_not_there_is_named(bench: Bench) -> None:
    await bench.run(orders=lane())
    for arguments, error in (
        ("groups pause orders nobody", "no group 'nobody'"),
        ("consumers drain orders c9", "no consumer 'c9'"),
    ):
        result = await program(bench.vhost, *arguments.split())
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith(f"dispatcher: {error}")
