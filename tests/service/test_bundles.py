"""Copies that travel together, to consumers that ask for it (C-12)."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.nodes.servers import PrivateServers
from tests.service.harness import LANE, Bench, bench_of, lane, private_vhost
from tests.service.test_refused_publishes import UNLIMITED, limit
from tests.spec.lane_bench import clause
from tests.waiting import eventually

SMALL: dict[str, Any] = {"messages": 8, "bytes": 4_000}


async def backlog(bench: Bench, count: int, size: int = 20) -> list[bytes]:
    """That many messages of ten groups in the inbound queue, before the lane runs."""
    client = await bench.client()
    await client.declare("in")
    bodies = [b"%d:" % number + bytes(size) for number in range(count)]
    for number, body in enumerate(bodies):
        client.send("in", body, f"g{number % 10}")
    await client.confirmed()
    return bodies


def in_order(consumer: Any, bodies: list[bytes]) -> None:
    for number in range(10):
        assert consumer.bodies(f"g{number}") == bodies[number::10]
        seqs = [copy.group_seq for copy in consumer.of_group(f"g{number}")]
        assert seqs == list(range(1, len(seqs) + 1))


async def test_a_consumer_that_takes_bundles_gets_the_same_copies_in_fewer_messages(bench: Bench) -> None:
    clause("C-12", "one AMQP message carries several copies, each as it would have come alone")
    bodies = await backlog(bench, 200)
    await bench.run(orders=lane())
    consumer = await bench.joined("c1", prefetch=100, bundle=SMALL, hold=True)
    await consumer.has(100)
    consumer.release()  # now a hundred are due at the same moment
    await consumer.has(200)
    in_order(consumer, bodies)
    assert max(consumer.bundles) == SMALL["messages"]
    assert min(consumer.bundles) > 1, "one that is alone comes as it always did"
    assert not consumer.repeated
    await bench.acked()


async def test_a_consumer_that_does_not_ask_gets_single_copies(bench: Bench) -> None:
    clause("C-12", "A consumer whose join says so gets bundles")
    bodies = await backlog(bench, 100)
    await bench.run(orders=lane())
    consumer = await bench.joined("c1", prefetch=300)
    await consumer.has(100)
    in_order(consumer, bodies)
    assert consumer.bundles == []


async def test_a_large_message_travels_alone_and_in_its_place(bench: Bench) -> None:
    clause("C-12", "A message that is as large as the consumer's limit travels alone")
    client = await bench.client()
    await client.declare("in")
    bodies = [b"%d:" % n + bytes(5_000 if n % 7 == 3 else 10) for n in range(60)]
    for body in bodies:
        client.send("in", body, "g")
    await client.confirmed()
    await bench.run(orders=lane())
    consumer = await bench.joined("c1", prefetch=30, bundle=SMALL, hold=True)
    await consumer.has(30)
    consumer.release()
    await consumer.has(60)
    assert consumer.bodies("g") == bodies
    assert consumer.bundles
    await bench.acked()


async def test_the_next_leader_knows_who_takes_bundles(bench: Bench) -> None:
    clause("C-12", "A consumer whose join says so gets bundles")
    await backlog(bench, 5)
    await bench.run(orders=lane())
    consumer = await bench.joined("c1", prefetch=55, bundle=SMALL, hold=True)
    await consumer.has(5)
    await bench.crash()
    so_far = len(consumer.bundles)
    await backlog(bench, 100)
    await bench.run(orders=lane())
    await consumer.has(55)
    consumer.release()
    await consumer.has(105)
    assert len(consumer.bundles) > so_far
    await bench.acked()


async def test_what_a_lost_bundle_carried_is_sent_again(bench: Bench) -> None:
    clause("C-12", "each copy has its number, is settled, fails, is sent again and is counted by itself")
    bodies = await backlog(bench, 100)
    await bench.run(orders=lane(reconnect_grace="10s"))
    consumer = await bench.joined("c1", prefetch=300, bundle=SMALL, hold=True)
    await consumer.has(100)
    held = dict(list(consumer.in_hand.items())[:50])
    consumer.in_hand = held  # it never saw the others
    consumer.received = [copy for copy in consumer.received if copy.seq in held]
    await consumer.rejoin()
    await consumer.has(100)
    assert sorted(copy.body for copy in consumer.received) == sorted(bodies)
    assert {copy.attempt for copy in consumer.received} == {1}
    consumer.release()
    await bench.acked()


async def test_a_bundle_that_rabbitmq_refuses_is_sent_copy_by_copy(private_servers: PrivateServers) -> None:
    """None of its messages is to blame: all of them arrive, and later bundles are smaller."""
    clause("C-12", "if it takes all of them, later bundles of this leadership are at most half as large")
    async with bench_of(private_vhost(private_servers)) as bench:
        bodies = await backlog(bench, 200, size=1_000)
        await limit(private_servers.rabbitmq, 8_000)
        try:
            await bench.run(orders=lane())
            limits = {"messages": 64, "bytes": 65_536}
            consumer = await bench.joined("c1", prefetch=50, bundle=limits, hold=True)
            for count in (50, 100, 150):  # each time as many are due at the same moment
                await consumer.has(count)
                consumer.settle(list(consumer.in_hand))
            consumer.release()
            await consumer.has(200)
            in_order(consumer, bodies)
            assert bench.counter("unpublishable") == 0
            assert consumer.bundles, "smaller ones are taken"
            assert bench.runners[LANE].leaderships == 1
            await bench.acked()
        finally:
            await limit(private_servers.rabbitmq, UNLIMITED)


@pytest.mark.parametrize(
    "bundle", [5, {"messages": 8}, {"messages": 0, "bytes": 10}, {"messages": 2, "bytes": 2**21}]
)
async def test_a_join_with_limits_that_are_none_is_refused(bench: Bench, bundle: Any) -> None:
    await bench.run(orders=lane())
    await bench.leads()
    consumer = bench.consumer("c1", bundle=bundle)
    await consumer.join(expect="refused")
    (notice,) = consumer.heard("refused")
    assert (
        "bundle" in notice.body["reason"]
        or "messages" in notice.body["reason"]
        or "bytes" in notice.body["reason"]
    )
    await eventually(lambda: bench.status()["consumers"] == 0)
