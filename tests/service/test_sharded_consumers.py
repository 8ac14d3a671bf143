"""Consumers of the SDK in a lane with shards: one object is in all of them, with one prefetch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.client import GroupConsumer, GroupProducer
from dispatcher.client.copies import Message
from dispatcher.client.shards import ShardsEngine, shares
from dispatcher.errors import ConfigurationError, ConsumerRefused
from dispatcher.wire.shards import ShardNames, shard_name
from tests.client.subjects import AsyncConsumer, BlockingConsumer
from tests.service.harness import LANE, START_S, Bench, lane
from tests.spec.lane_bench import clause
from tests.waiting import eventually

GROUPS = 30
EACH = 20
PREFETCH = 10


def shards(count: int, **keys: Any) -> dict[str, Any]:
    return lane("in", shards=count, **keys)


def rows(bench: Bench) -> dict[str, list[dict[str, Any]]]:
    """The consumers of each shard that is led."""
    known = {name: runner.consumers() for name, runner in bench.runners.items()}
    return {name: found["consumers"] for name, found in known.items() if found is not None}


def prefetch_of(bench: Bench, consumer_id: str) -> dict[str, int]:
    """As each shard knows it that this consumer is in."""
    return {
        name: row["prefetch"]
        for name, of_shard in rows(bench).items()
        for row in of_shard
        if row["consumer"] == consumer_id
    }


async def sent(bench: Bench, each: int = EACH) -> None:
    names = ShardNames(LANE, bench.vhost.redis_prefix)
    async with GroupProducer(bench.vhost.amqp_url, exchange=names.exchange, routing_key="in") as producer:
        for n in range(each):
            for group in range(GROUPS):
                producer.submit(b"%d" % n, f"group {group}")


@pytest.mark.parametrize("kind", [AsyncConsumer, BlockingConsumer])
async def test_one_consumer_has_the_messages_of_all_shards(bench: Bench, kind: Any) -> None:
    await bench.run(**{LANE: shards(3)})
    consumer = kind(bench.vhost.amqp_url, "c", PREFETCH, prefix=bench.vhost.redis_prefix, sharded=True)
    await consumer.open()
    try:
        await consumer.joined()
        assert prefetch_of(bench, "c") == dict(zip(bench.runners, (4, 3, 3), strict=True))
        await sent(bench)
        got: dict[bytes, list[int]] = {}
        for _ in range(GROUPS * EACH):
            message = await consumer.next()
            got.setdefault(message.group, []).append(int(message.body))
            assert await consumer.ack(message)
        assert got == {f"group {group}".encode(): list(range(EACH)) for group in range(GROUPS)}
        for name in bench.runners:
            await bench.acked(shard_name("in", int(name[-1])), name)
    finally:
        await consumer.close()
    await eventually(lambda: not prefetch_of(bench, "c"), what="it to be out of all shards")


async def test_no_more_than_its_prefetch_is_out_over_all_shards(bench: Bench) -> None:
    await bench.run(**{LANE: shards(3)})
    await sent(bench)
    running: set[Message] = set()
    most = 0
    seen = 0

    async def handle(message: Message) -> None:
        nonlocal most, seen
        running.add(message)
        most = max(most, len(running))
        await asyncio.sleep(0)  # sleeps: others may begin
        running.discard(message)
        seen += 1

    consumer = GroupConsumer(
        bench.vhost.amqp_url, LANE, "c", PREFETCH, prefix=bench.vhost.redis_prefix, sharded=True
    )
    out = []
    task = asyncio.create_task(consumer.run(handle, concurrency=100, stop_on_signals=False))
    while seen < GROUPS * EACH and not task.done():
        out.append(sum(row["in_flight"] for of_shard in rows(bench).values() for row in of_shard))
        await asyncio.sleep(0)  # sleeps: the consumer has its turn
    assert max(out) <= PREFETCH
    assert most <= PREFETCH
    consumer.stop()
    await task


async def test_it_is_in_as_many_shards_as_there_are(bench: Bench) -> None:
    consumer = GroupConsumer(
        bench.vhost.amqp_url, LANE, "c", PREFETCH, prefix=bench.vhost.redis_prefix, sharded=True
    )
    clause("S-6", "A new leader tells the consumers that it knows")
    async with consumer:
        for count in (2, 4, 2):
            await bench.run(**{LANE: shards(count)})
            expected = {
                shard_name(LANE, 1 + place): share for place, share in enumerate(shares(PREFETCH, count))
            }
            await eventually(lambda expected=expected: prefetch_of(bench, "c") == expected, START_S)
            for name in list(bench.runners):
                await bench.stop(name)
            bench.runners.clear()


async def test_it_joins_a_shard_again_that_it_is_leaving(bench: Bench) -> None:
    await bench.run(**{LANE: shards(3)})
    await sent(bench)
    consumer = GroupConsumer(
        bench.vhost.amqp_url, LANE, "c", PREFETCH, prefix=bench.vhost.redis_prefix, sharded=True
    )
    async with consumer:
        await consumer.joined()
        rest = list(bench.runners)[-1]
        await eventually(lambda: bench.status(rest)["in_flight"] > 0)
        assert isinstance(consumer._engine, ShardsEngine)
        consumer._engine._be_in(2)  # as if that had been said; the next welcome says three
        async with asyncio.timeout(START_S):
            for _ in range(GROUPS * EACH):
                await (await anext(aiter(consumer))).ack()
            await consumer.joined()
        assert prefetch_of(bench, "c") == dict(zip(bench.runners, (4, 3, 3), strict=True))


async def test_what_one_shard_refuses_ends_the_consumer(bench: Bench) -> None:
    await bench.run(**{LANE: shards(2, strict_identity=True)})
    consumer = GroupConsumer(bench.vhost.amqp_url, LANE, "c", prefix=bench.vhost.redis_prefix, sharded=True)
    async with consumer:
        with pytest.raises(ConsumerRefused):
            await asyncio.wait_for(consumer.joined(), START_S)


@pytest.mark.parametrize(
    ("prefetch", "count", "each"), [(10, 3, [4, 3, 3]), (2, 4, [1, 1, 1, 1]), (8, 2, [4, 4])]
)
def test_a_prefetch_is_shared_out(prefetch: int, count: int, each: list[int]) -> None:
    assert shares(prefetch, count) == each


def test_one_shard_is_no_lane_with_shards() -> None:
    with pytest.raises(ConfigurationError, match="lane: "):
        GroupConsumer("amqp://localhost/", "orders@1", "c", sharded=True)
    with pytest.raises(ConfigurationError, match="lane: "):
        GroupConsumer("amqp://localhost/", "orders@x", "c")
