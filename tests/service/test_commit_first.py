"""The dispatcher does nothing that Redis has not committed (docs/semantics.md, D-7 and G-3)."""

from __future__ import annotations

from tests.redis_store.proxy import Proxy
from tests.service.harness import LANE, Bench, lane
from tests.service.protocol_consumer import ProtocolConsumer
from tests.spec.lane_bench import clause
from tests.waiting import eventually


async def _with_silent_redis(bench: Bench, proxy: Proxy) -> ProtocolConsumer:
    """A consumer has messages 0 and 1, and from now on nothing gets to Redis."""
    redis = {"url": proxy.url, "timeout": "200ms"}
    await bench.run(changes={"redis": redis}, **{LANE: lane()})
    consumer = await bench.joined("c1", hold=True)
    client = await bench.client()
    client.send("in", b"0", "a")
    client.send("in", b"1", "b")
    await consumer.has(2)
    proxy.hold_requests_after(0)
    return consumer


async def _is_decided(bench: Bench) -> None:
    """The lane has heard of it, and its commit is not answered."""
    await eventually(lambda: bench.status()["in_flight"] == 0, what="the decision")
    await eventually(lambda: "did not answer within" in bench.runners[LANE].readiness()[1])


async def test_nothing_is_acked_before_its_settle_is_committed(bench: Bench) -> None:
    clause("D-7", "nothing is acked before its settle is committed")
    clause("G-3", "An original is acked only after its consumer's settle")
    async with Proxy(bench.vhost.redis_url) as proxy:
        consumer = await _with_silent_redis(bench, proxy)
        consumer.release()
        await _is_decided(bench)
        await bench.crash()
    client = await bench.client()
    await client.has_ready("in", 2)  # both originals are still RabbitMQ's
    await bench.run(**{LANE: lane()})
    await bench.acked()
    await client.has_ready("in", 0)
    assert consumer.bodies() == [b"0", b"1"], "the settle was RabbitMQ's too, and counts now"


async def test_nothing_goes_to_the_dead_queue_before_that_is_committed(bench: Bench) -> None:
    clause("D-7", "Nothing is published before the commit that says so is known to have happened")
    async with Proxy(bench.vhost.redis_url) as proxy:
        consumer = await _with_silent_redis(bench, proxy)
        for seq in list(consumer.in_hand):
            consumer.fail(seq, "no stock")
        await _is_decided(bench)
        await bench.crash()
    client = await bench.client()
    await client.has_ready("in", 2)
    assert await client.ready(bench.names().dead) == 0
    await bench.run(**{LANE: lane()})
    await client.has_ready(bench.names().dead, 2)
    await bench.acked()
