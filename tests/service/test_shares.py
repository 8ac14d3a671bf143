"""Shares by cost, and new groups by measured work, end to end (docs/semantics.md, F-5, F-6 and O-2)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.amqp.samples import field
from tests.service.clients import Client
from tests.service.harness import Bench, lane
from tests.service.protocol_consumer import ProtocolConsumer
from tests.waiting import eventually

Cost = dict[str, Any]


async def _served(bench: Bench, publish: Callable[[Client], None], count: int, **keys: Any) -> Counter[bytes]:
    """Of the messages of two full inbound queues the first so many, by body."""
    await bench.run(orders=lane("dear", "cheap", **keys))
    client = await bench.client()
    publish(client)
    await client.confirmed()
    await eventually(lambda: bench.status()["held"] == 600)
    consumer = await bench.joined("c1", prefetch=count, hold=True)
    await consumer.has(count)
    return Counter(copy.body[:1] for copy in consumer.received)


@pytest.mark.seed("D5")
@pytest.mark.parametrize("cost", [{"header": "x-cost"}, "bytes"], ids=["header", "bytes"])
async def test_shares_are_of_cost_not_of_messages(bench: Bench, cost: object) -> None:
    """Both queues have one weight; messages of one cost about five times as much."""

    def publish(client: Client) -> None:
        for number in range(300):
            price = field("x-cost", "b", b"\x05")
            client.send("dear", b"d" + b"x" * 5_000, f"d{number}", price)
            client.send("cheap", b"c" + b"x" * 900, f"c{number}")

    got = await _served(bench, publish, 120, cost=cost)
    assert got[b"c"] / got[b"d"] == pytest.approx(5, rel=0.15)
    rows = {row["queue"]: row["share"] for row in bench.status()["inbound"]}
    assert rows["dear"] == pytest.approx(0.5, abs=0.05)


async def test_measured_shares_begin_with_what_a_file_says(bench: Bench, tmp_path: Path) -> None:
    """Nothing has been settled: without the file all cost the same."""
    bands = {
        queue: [
            {"type": kind, "size_below": 64, "messages": 500, "mean_us": mean_us, "error_us": 1.0}
            for kind, mean_us in kinds.items()
        ]
        for queue, kinds in {"dear": {"d": 9_000, None: 1}, "cheap": {None: 1_000}}.items()
    }
    file = tmp_path / "cost_model.json"
    file.write_text(json.dumps({"version": 2, "unit": "µs", "lanes": {"orders": bands}}))

    def publish(client: Client) -> None:
        for number in range(300):
            client.send("dear", b"d", f"d{number}", type_=b"d")
            client.send("cheap", b"c", f"c{number}")

    got = await _served(bench, publish, 100, cost={"measured": str(file)})
    assert got[b"c"] / got[b"d"] == pytest.approx(9, rel=0.2)


async def _work(consumer: ProtocolConsumer, bench: Bench, ms_of: Callable[[bytes], int], until: int) -> None:
    """Settle what it has one by one, each after its time."""
    while len(consumer.settled) < until:
        await eventually(lambda: bool(consumer.in_hand))
        seq, copy = next(iter(consumer.in_hand.items()))
        await asyncio.sleep(ms_of(copy.body) / 1_000)  # sleeps: this is the work
        consumer.settle([seq])


@pytest.mark.seed("D5")
async def test_measured_work_gives_a_slow_queue_fewer_messages(bench: Bench) -> None:
    await bench.run(orders=lane("dear", "cheap", cost="measured"))
    client = await bench.client()
    for number in range(150):
        client.send("dear", b"dear", f"d{number}")
        client.send("cheap", b"cheap", f"c{number}")
    await client.confirmed()
    consumer = await bench.joined("c1", prefetch=1, hold=True)
    # What a busy machine adds to either counts little against the dear work.
    await _work(consumer, bench, lambda body: 120 if body == b"dear" else 3, 20)
    await _work(consumer, bench, lambda body: 120 if body == b"dear" else 3, 100)
    got = Counter(copy.body for copy in consumer.received[20:])
    assert got[b"cheap"] > 2 * got[b"dear"]


async def test_new_groups_go_where_the_least_work_is(bench: Bench) -> None:
    await bench.run(orders=lane(placement="measured"))
    client = await bench.client()
    slow, quick = [await bench.joined(name, prefetch=100, hold=True) for name in ("slow", "quick")]
    for group in ("a", "b"):
        client.send("in", b"x", group)
    await slow.has(1)
    await quick.has(1)
    quick.settle(list(quick.in_hand))
    await eventually(lambda: bench.counter("settled") == 1)
    await asyncio.sleep(0.6)  # sleeps: this is the work
    slow.settle(list(slow.in_hand))
    await eventually(lambda: bench.counter("settled") == 2)
    for group in range(30):
        client.send("in", b"x", f"new{group}")
    await eventually(lambda: len(slow.received) + len(quick.received) == 32)
    assert len(quick.received) > 2 * len(slow.received)


async def test_ids_of_a_concurrent_lane_take_turns_and_none_has_more_out_than_its_limit(bench: Bench) -> None:
    """One tenant has a huge backlog, and another one comes later with little."""
    await bench.run(orders=lane(policy="concurrent", max_in_flight_per_group=3))
    client = await bench.client()
    for number in range(500):
        client.send("in", b"big", "big", correlation_id=b"%d" % number)
    client.send("in", b"small", "small")
    client.send("in", b"small", "small")
    await client.confirmed()
    await eventually(lambda: bench.status()["held"] == 502)
    one = await bench.joined("c1", prefetch=4, hold=True)
    assert [copy.body for copy in await one.has(4)] == [b"big", b"small", b"big", b"small"]
    two = await bench.joined("c2", prefetch=100, hold=True)
    await two.has(1)
    client.send("in", b"late", "late")
    await two.has(2)
    assert [copy.body for copy in two.received] == [b"big", b"late"], "three of `big` are out"
    one.settle([seq for seq, copy in one.in_hand.items() if copy.body == b"big"])
    await eventually(lambda: len(one.received) + len(two.received) == 8)
    assert bench.status()["in_flight"] == 6, "two more of `big`"
    one.release()
    two.release()
    await bench.acked()
