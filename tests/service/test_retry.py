"""`retry`: how often a lane's messages are tried, and what says so."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import pytest
from structlog.testing import capture_logs

from dispatcher.client import GroupConsumer
from dispatcher.client.copies import Message
from tests.service.harness import LANE, Bench, lane
from tests.service.program import program
from tests.service.protocol_consumer import read_properties
from tests.spec.lane_bench import clause


@pytest.mark.seed("R7", "R10", "R20")
async def test_a_message_is_tried_as_the_lane_says_and_every_attempt_is_told(bench: Bench) -> None:
    clause("D-5", "`x-dispatch-calls` (of the handler in the last one, if its consumer failed it)")
    with capture_logs() as logged:
        await bench.run(orders=lane(retry={"attempts": 2, "backoff": "60ms"}))
        client = await bench.client()
        calls: list[tuple[bytes, float]] = []

        async def handle(message: Message) -> None:
            calls.append((message.body, time.monotonic()))
            if message.body == b"bad":
                raise ValueError("no such customer")

        consumer = GroupConsumer(bench.rabbitmq.url, LANE, "c1", prefix=bench.vhost.redis_prefix)
        running = asyncio.create_task(consumer.run(handle, stop_on_signals=False))
        client.send("in", b"bad", "g")
        client.send("in", b"after", "g")
        dead = bench.names().dead
        await client.has_ready(dead, 1)
        await bench.acked()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert [body for body, _ in calls] == [b"bad", b"bad", b"after"]
    assert calls[1][1] - calls[0][1] >= 0.059
    (message,) = await client.take(dead)
    headers = read_properties(message.properties).headers or {}
    assert headers["x-dispatch-reason"] == "ValueError: no such customer"
    assert (headers["x-dispatch-attempt"], headers["x-dispatch-calls"]) == (1, 2)
    (told,) = [record for record in logged if record["event"] == "message_failed"]
    assert (told["consumer"], told["attempt"], told["calls"]) == ("c1", 1, 2)


async def test_calls_survive_a_crash_and_absurd_ones_do_no_harm(bench: Bench) -> None:
    lanes = {"orders": lane()}
    await bench.run(**lanes)
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True, prefetch=50)
    for number in range(50):
        client.send("in", b"%d" % number, f"g{number}")
    await consumer.has(50)
    for seq in list(consumer.in_hand):
        consumer.fail(seq, "no", attempts=2**53 - 1)
    await consumer.confirmed()
    await bench.crash()
    await bench.run(**lanes)
    await bench.acked()
    taken = await client.take(bench.names().dead)
    calls = {(read_properties(m.properties).headers or {})["x-dispatch-calls"] for m in taken}
    assert calls == {2**31 - 1}


async def test_a_released_message_is_processed_again(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    client.send("in", b"0", "g")
    (copy,) = await consumer.has(1)
    consumer.fail(copy.seq, "no stock", attempts=3)
    await client.has_ready(bench.names().dead, 1)
    listed = json.loads((await program(bench.vhost, "dead", "list", "orders", "--json")).stdout)
    (row,) = listed["messages"]
    assert (row["group"], row["reason"], row["attempt"], row["calls"]) == ("g", "no stock", 1, 3)
    assert (await program(bench.vhost, "dead", "release", "orders", "--group", "g")).returncode == 0
    again = (await consumer.has(2))[1]
    assert (again.body, again.group, again.attempt) == (b"0", b"g", 1)
    consumer.settle([again.seq])
    await bench.acked()
    assert await client.ready(bench.names().dead) == 0
