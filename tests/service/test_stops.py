"""`retry.on_exhausted: stop`: a failed message stops its group until somebody decides (semantics, D-9)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
import redis

from dispatcher.client import GroupConsumer
from dispatcher.client.copies import Message
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.nodes.servers import PrivateServers
from dispatcher.redis_store.scripts import LaneKeys
from tests.service.conftest import Starter
from tests.service.harness import LANE, Bench, bench_of, lane, private_vhost
from tests.service.program import program
from tests.service.protocol_consumer import ProtocolConsumer, read_properties
from tests.waiting import eventually

STOP: Final[dict[str, Any]] = {"retry": {"attempts": 2, "backoff": "20ms", "on_exhausted": "stop"}}


@pytest.fixture
def own_redis() -> Iterator[LocalRedis]:
    with LocalRedis() as server:
        yield server


async def operator(bench: Bench, *arguments: str) -> str:
    """What the program prints for a command that is done."""
    result = await program(bench.vhost, *arguments, **STOP)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


async def stopped(bench: Bench, count: int = 1) -> None:
    async def so_many() -> bool:
        return bool((await bench.ask("status"))["groups_stopped"] == count)

    await eventually(so_many, what=f"{count} groups to stop")


async def stop_g(bench: Bench, consumer: ProtocolConsumer) -> None:
    """Group g stops at its first message; two wait behind it."""
    client = await bench.client()
    for body in (b"1", b"2", b"3"):
        client.send("in", body, "g")
    client.send("in", b"other", "h")
    await consumer.has(2)
    consumer.fail(consumer.of_group("g")[0].seq, "no stock", 2)
    await stopped(bench)


async def went_on(consumer: ProtocolConsumer, *bodies: bytes) -> None:
    """The group's messages come one by one, each when the one before is settled."""
    for body in bodies:
        await eventually(lambda: bool(consumer.in_hand), what=f"{body!r}")
        ((seq, copy),) = consumer.in_hand.items()
        assert copy.body == body
        consumer.settle([seq])


@pytest.mark.seed("R11", "R20", "R13")
async def test_a_group_waits_for_an_operator_also_when_the_leader_is_killed(
    bench: Bench, dispatcher_process: Starter
) -> None:
    one = dispatcher_process("one", orders=lane(**STOP))
    await asyncio.to_thread(one.ready)
    consumer = await bench.joined("c1", hold=True)
    await stop_g(bench, consumer)
    consumer.settle(list(consumer.in_hand))
    one.kill9()
    two = dispatcher_process("two", orders=lane(**STOP))
    await asyncio.to_thread(two.ready)
    await stopped(bench)
    assert "Stopped at a message that failed: no stock" in await operator(
        bench, "groups", "why", "orders", "g"
    )
    listed = json.loads(await operator(bench, "dead", "list", "orders", "--json"))
    (row,) = listed["stopped"]
    assert (row["group"], row["reason"], row["attempt"], row["calls"]) == ("g", "no stock", 1, 2)
    assert listed["messages"] == []
    assert "stopped: no stock" in await operator(bench, "groups", "list", "orders")
    assert not consumer.in_hand
    assert await operator(bench, "dead", "release", "orders", "--group", "g") == (
        "1 stopped group released; 0 messages released from the dead queue\n"
    )
    await eventually(lambda: bool(consumer.in_hand))
    assert next(iter(consumer.in_hand.values())).attempt == 2
    await went_on(consumer, b"1", b"2", b"3")


@pytest.mark.parametrize("policy", ["exclusive", "sequenced"])
async def test_skipped_it_is_in_the_dead_queue_and_dropped_it_is_gone(bench: Bench, policy: str) -> None:
    await bench.run(orders=lane(policy=policy, **STOP))
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    await stop_g(bench, consumer)
    consumer.settle(list(consumer.in_hand))
    nothing = await program(bench.vhost, "dead", "skip", "orders", "--group", "h", **STOP)
    assert (nothing.returncode, nothing.stderr.count("\n")) == (1, 1)
    assert "the dead queue has nothing of group 'h'" in nothing.stderr
    assert await operator(bench, "dead", "skip", "orders", "--all") == (
        "1 stopped group released behind the failed message\n"
    )
    await client.has_ready(bench.names().dead, 1)
    (message,) = await client.take(bench.names().dead)
    headers = read_properties(message.properties).headers or {}
    assert (message.body, headers["x-dispatch-reason"], headers["x-dispatch-calls"]) == (b"1", "no stock", 2)
    await eventually(lambda: bool(consumer.in_hand))
    consumer.fail(next(iter(consumer.in_hand)), "no stock", 2)
    await stopped(bench)
    result = await bench.ask("dead.drop", group="g")
    assert (result["verdict"], result["behind"]) == ("drop", 1)
    await went_on(consumer, b"3")
    await bench.acked()
    assert await client.ready(bench.names().dead) == 0


async def test_a_stopped_groups_followers_wait_in_a_parking_queue(bench: Bench) -> None:
    await bench.run(orders=lane(look_ahead=20, **STOP))
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    for number in range(60):
        client.send("in", b"%d" % number, "g")
    await consumer.has(1)
    consumer.fail(consumer.received[0].seq, "no stock", 2)
    await stopped(bench)
    client.send("in", b"other", "h")
    await consumer.has(2)
    assert consumer.received[1].body == b"other", "it came behind all of them"
    await eventually(lambda: bench.status()["parked"] > 0)
    why = await bench.ask("groups.why", group="g")
    assert (why["reason"], why["facts"]["failure"]) == ("stopped", "no stock")
    assert why["behind"] >= 59
    assert await operator(bench, "dead", "release", "orders", "--group", "g")
    consumer.release()
    await consumer.has(62)
    await bench.acked()
    assert consumer.bodies("g") == [b"0", *(b"%d" % number for number in range(60))]


@pytest.mark.seed("R16")
async def test_the_sdk_calls_no_handler_behind_a_failed_message(bench: Bench) -> None:
    await bench.run(orders=lane(**STOP))
    client = await bench.client()
    calls: list[bytes] = []
    mended = False

    async def handle(message: Message) -> None:
        calls.append(message.body)
        if message.body == b"bad" and not mended:
            raise ValueError("no such customer")

    consumer = GroupConsumer(bench.rabbitmq.url, LANE, "c1", prefix=bench.vhost.redis_prefix)
    running = asyncio.create_task(consumer.run(handle, stop_on_signals=False))
    for body in (b"bad", b"after"):
        client.send("in", body, "g")
    await stopped(bench)
    client.send("in", b"other", "h")
    await eventually(lambda: b"other" in calls)
    assert calls == [b"bad", b"bad", b"other"]
    mended = True
    await bench.ask("dead.release", group="g")
    await bench.acked()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert calls == [b"bad", b"bad", b"other", b"bad", b"after"]


async def test_that_it_has_stopped_is_written_back_to_an_empty_redis(
    bench: Bench, own_redis: LocalRedis
) -> None:
    await bench.run(redis_url=own_redis.url, orders=lane(**STOP))
    consumer = await bench.joined("c1", hold=True)
    await stop_g(bench, consumer)
    key = LaneKeys.of(bench.vhost.redis_prefix, LANE).flags
    with redis.Redis.from_url(own_redis.url) as store:
        store.flushall()
        consumer.settle(list(consumer.in_hand))  # a commit, by which the leader sees it
        await eventually(lambda: store.hkeys(key) == [b"group:g"], what="the flag to be written back")
    await bench.crash()
    await bench.run(redis_url=own_redis.url, orders=lane(**STOP))
    await stopped(bench)
    await bench.ask("dead.release", group="g")
    await went_on(consumer, b"1", b"2", b"3")


async def test_a_restart_of_rabbitmq_changes_nothing(private_servers: PrivateServers) -> None:
    async with bench_of(private_vhost(private_servers)) as bench:
        await bench.run(orders=lane(**STOP))
        await stop_g(bench, await bench.joined("c1", hold=True))
        await asyncio.to_thread(private_servers.rabbitmq.sync_definitions)
        await asyncio.to_thread(private_servers.rabbitmq.kill9)
        await asyncio.to_thread(private_servers.rabbitmq.start)
        consumer = await bench.joined("c2", hold=True)
        await eventually(lambda: bench.status()["held"] >= 3)
        await stopped(bench)
        await bench.ask("dead.release", group="g")
        await eventually(lambda: any(copy.body == b"1" for copy in consumer.received))
        assert consumer.of_group("g")[0].body == b"1"


async def test_a_lane_that_skips_has_nothing_to_skip(bench: Bench) -> None:
    await bench.run(orders=lane())
    result = await program(bench.vhost, "dead", "skip", "orders", "--all")
    assert (result.returncode, result.stdout) == (1, "")
    assert "lanes.orders.retry.on_exhausted is not stop" in result.stderr
