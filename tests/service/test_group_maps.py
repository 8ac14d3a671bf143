"""Which groups a lane remembers, end to end (docs/semantics.md, O-14 to O-17)."""

from __future__ import annotations

from collections import defaultdict
from itertools import count

import pytest
import redis

from dispatcher.client import GroupConsumer
from dispatcher.redis_store.scripts import LaneKeys
from tests.service.harness import LANE, Bench, lane
from tests.service.protocol_consumer import ProtocolConsumer
from tests.waiting import eventually


def _owners(*consumers: ProtocolConsumer) -> dict[bytes, set[str]]:
    owners: dict[bytes, set[str]] = defaultdict(set)
    for consumer in consumers:
        for copy in consumer.received:
            owners[copy.group or b""].add(consumer.id)
    return owners


def _rows(bench: Bench) -> int:
    """Owners that Redis keeps."""
    with redis.Redis.from_url(bench.vhost.redis_url) as client:
        return int(client.hlen(LaneKeys.of(bench.vhost.redis_prefix, LANE).owners))  # type: ignore[arg-type]


@pytest.mark.seed("C18")
async def test_an_lru_map_forgets_only_groups_that_have_nothing(bench: Bench) -> None:
    """Four groups in rotation with room for three: the order of none is lost, whoever is slow."""
    await bench.run(orders=lane(group_map={"lru": 3}))
    client = await bench.client()
    slow = await bench.joined("slow", prefetch=100, hold=True)
    for number in range(10):
        for group in "abcd":
            client.send("in", b"%d" % number, group)
    await slow.has(40)
    quick = await bench.joined("quick")
    for number in range(10, 20):
        for group in "abcd":
            client.send("in", b"%d" % number, group)
    await slow.has(80)
    assert not quick.received, "every group has something unsettled: none was forgotten"
    slow.release()
    await bench.acked()
    assert bench.status()["groups"] == 3
    assert bench.counter("groups_forgotten") == 1
    client.send("in", b"20", "a")  # which came to rest first
    await quick.has(1)
    await eventually(lambda: _rows(bench) == 3)


@pytest.mark.seed("C19", "C21")
async def test_each_lane_has_a_map_of_its_own(bench: Bench) -> None:
    await bench.run(orders=lane("in"), other=lane("o", group_map={"lru": 2}))
    client = await bench.client()
    owner, other = await bench.joined("c1"), await bench.joined("c1", "other")
    for queue in ("in", "o"):
        for number in range(50):
            client.send(queue, b"x", f"g{number}")
    await owner.has(50)
    await other.has(50)
    await bench.acked()
    await bench.acked("o", "other")
    assert bench.status()["groups"] == 50
    assert bench.status("other")["groups"] == 2


@pytest.mark.seed("A18", "A19", "A20", "C4", "C20")
async def test_groups_of_a_bucket_share_its_owner_and_memory_stays_as_it_is(bench: Bench) -> None:
    await bench.run(orders=lane(group_map={"buckets": 2}))
    client = await bench.client()
    consumers = [await bench.joined(f"c{number}") for number in range(3)]
    for number in range(30):
        for group in range(20):
            client.send("in", b"%d" % number, f"g{group}")
    await eventually(lambda: sum(len(c.received) for c in consumers) == 600)
    owners = _owners(*consumers)
    assert len(owners) == 20, "the copies carry the ids as they came"
    assert all(len(of_group) == 1 for of_group in owners.values())
    assert len({*(tuple(of_group) for of_group in owners.values())}) == 2, "two buckets, two owners"
    for consumer in consumers:
        for group in {copy.group for copy in consumer.received}:
            assert [int(copy.body) for copy in consumer.of_group(group or b"")] == list(range(30))
    assert (bench.status()["groups"], _rows(bench)) == (2, 2)
    shown = await bench.ask("groups.show", group="g7")
    assert shown["group"] in ("bucket:0/2", "bucket:1/2")


async def test_the_sdk_sees_no_gap_in_a_bucket(bench: Bench) -> None:
    """It would join again, for it would take a number of another id for a lost copy."""
    await bench.run(orders=lane(group_map={"buckets": 1}))
    client = await bench.client()
    for number in range(20):
        for group in "abc":
            client.send("in", b"%d" % number, group)
    await client.confirmed()
    seen: dict[bytes | None, list[int]] = defaultdict(list)
    total = count(1)
    async with GroupConsumer(
        bench.vhost.amqp_url, LANE, "sdk", prefetch=5, prefix=bench.vhost.redis_prefix
    ) as sdk:
        async for message in sdk:
            seen[message.group].append(int(message.body))
            await message.ack()
            if next(total) == 60:
                break
    assert list(seen.values()) == [list(range(20))] * 3
    assert bench.counter("rejoins") == 0


@pytest.mark.seed("A18", "A21")
async def test_without_a_map_every_message_goes_to_the_next_consumer(bench: Bench) -> None:
    await bench.run(orders=lane("in", group_map="none"), grouped=lane("g"))
    client = await bench.client()
    consumers = [await bench.joined(f"c{number}") for number in range(3)]
    pinned = [await bench.joined(f"c{number}", "grouped") for number in range(3)]
    for _ in range(30):
        client.send("in", b"x", "one")
        client.send("g", b"x", "one")
    await eventually(lambda: sum(len(c.received) for c in (*consumers, *pinned)) == 60)
    assert [len(c.received) for c in consumers] == [10, 10, 10]
    assert sorted(len(c.received) for c in pinned) == [0, 0, 30]
    assert not any(copy.group for consumer in consumers for copy in consumer.received)


async def test_a_lane_that_is_started_with_another_map_keeps_its_order(bench: Bench) -> None:
    await bench.run(orders=lane(group_map={"buckets": 2}))
    client = await bench.client()
    consumers = [await bench.joined(f"c{number}", prefetch=5, hold=True) for number in range(3)]
    for number in range(5):
        for group in range(6):
            client.send("in", b"%d" % number, f"g{group}")
    await eventually(lambda: sum(len(c.received) for c in consumers) == 10)
    for group_map in ({"buckets": 3}, "exact"):
        await bench.crash()
        await bench.run(orders=lane(group_map=group_map))
        for number in range(5):
            for group in range(6):
                client.send("in", b"%d" % (number + 5), f"g{group}")
    await client.confirmed()
    for consumer in consumers:
        consumer.release()
    await bench.acked()
    for group in range(6):
        copies = [copy for consumer in consumers for copy in consumer.of_group(f"g{group}")]
        bodies = [int(copy.body) for copy in sorted(copies, key=lambda copy: copy.at)]
        assert bodies == [*range(10), *range(5, 10)]
    await eventually(lambda: _rows(bench) == 6, what="the buckets to be forgotten")
