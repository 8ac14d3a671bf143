"""Repeated messages (`dedup`) on real servers: docs/semantics.md, U-1 to U-5."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import redis.asyncio
import yaml

from dispatcher.cli.dead import release
from dispatcher.cli.options import DEFAULT_TIMEOUT_MS
from tests.conftest import Vhost
from tests.service.clients import Client
from tests.service.conftest import Starter
from tests.service.harness import Bench, document, lane
from tests.waiting import eventually

DEDUP = {"dedup": {"window": "5m"}}


def send(client: Client, name: str, group: str = "g", message_id: str | None = None) -> None:
    """A message that says what it is in its body; its id is the same, if that is not given."""
    client.send("in", name.encode(), group, message_id=(message_id or name).encode())


def bodies(received: list[Any]) -> list[str]:
    return [copy.body.decode() for copy in received]


async def test_of_two_with_one_message_id_one_is_handed_over(bench: Bench) -> None:
    await bench.run(orders=lane(**DEDUP))
    client = await bench.client()
    for name in ("1", "2", "1", "3", "1"):
        send(client, name)
    send(client, "other bytes", "other group", message_id="2")
    client.send("in", b"no id", "g")
    client.send("in", b"no id", "g")
    consumer = await bench.joined("c1")
    await bench.acked()
    assert bodies(consumer.received) == ["1", "2", "3", "no id", "no id"]
    assert bench.counter("deduplicated") == 3
    send(client, "3")
    await eventually(lambda: bench.counter("deduplicated") == 4)
    await bench.acked()


async def test_what_repeats_a_message_after_the_window_is_a_new_one(bench: Bench) -> None:
    await bench.run(orders=lane(dedup={"window": "1s"}))
    client = await bench.client()
    consumer = await bench.joined("c1")
    begun, sends = time.monotonic(), 0

    def comes_twice() -> bool:
        nonlocal sends
        if len(consumer.received) < 2:
            send(client, "1")
            sends += 1
        return len(consumer.received) == 2

    await eventually(comes_twice)
    assert consumer.received[1].at - begun > 0.9
    await bench.acked()
    assert bench.counter("deduplicated") == sends - 2 > 0, "none of them made it longer"


async def test_beyond_max_ids_the_oldest_leave_the_window(bench: Bench) -> None:
    await bench.run(orders=lane(dedup={"window": "1h", "max_ids": 1_000}))
    client = await bench.client()
    consumer = await bench.joined("c1", prefetch=500)
    for number in range(1_200):
        send(client, str(number), f"g{number % 20}")
    await consumer.has(1_200)
    send(client, "0")
    send(client, "1199")
    await consumer.has(1_201)
    await bench.acked()
    assert bodies(consumer.received)[1_200:] == ["0"]
    assert bench.counter("ids_forgotten") >= 200


async def test_the_window_survives_a_crash_and_what_was_in_hand_is_not_in_its_way(bench: Bench) -> None:
    await bench.run(orders=lane(**DEDUP))
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    for name in ("1", "2", "3"):
        send(client, name)
    await consumer.has(3)
    consumer.settle([consumer.received[0].seq])
    await consumer.confirmed()
    await bench.crash()
    for name in ("1", "2", "3", "4"):
        send(client, name)
    await client.confirmed()
    await bench.run(orders=lane(**DEDUP))
    consumer.release()
    await consumer.has(4)
    await bench.acked()
    assert bodies(consumer.received) == ["1", "2", "3", "4"]
    assert bench.counter("deduplicated") == 3


async def test_a_dead_consumers_messages_and_released_ones_are_no_repeated_ones(
    bench: Bench, vhost: Vhost, tmp_path: Path
) -> None:
    lanes = {"orders": lane(**DEDUP, retry={"attempts": 5})}
    await bench.run(**lanes)
    client = await bench.client()
    first = await bench.joined("c1", hold=True)
    send(client, "1")
    send(client, "2")
    await first.has(2)
    await first.drop()
    second = await bench.joined("c2", hold=True)
    await second.has(2)
    second.fail(second.received[0].seq, "broken")
    second.settle([second.received[1].seq])
    dead = bench.names().dead
    await client.has_ready(dead, 1)
    file = tmp_path / "dispatch.yaml"
    settings = document(vhost.amqp_url, vhost.redis_url, vhost.redis_prefix, lanes)
    file.write_text(yaml.safe_dump(settings))
    await asyncio.to_thread(release, lane="orders", everything=True, file=file, timeout_ms=DEFAULT_TIMEOUT_MS)
    await second.has(3)
    second.release()
    await bench.acked()
    assert bodies(second.received) == ["1", "2", "1"]
    assert not any(name.startswith("x-dispatch-origin") for copy in second.received for name in copy.headers)
    assert bench.counter("deduplicated") == 0


async def test_a_redis_that_lost_the_window_gets_it_back(bench: Bench) -> None:
    await bench.run(orders=lane(**DEDUP))
    client = await bench.client()
    consumer = await bench.joined("c1")
    send(client, "1")
    await consumer.has(1)
    await bench.acked()
    async with redis.asyncio.Redis.from_url(bench.vhost.redis_url) as server:
        (ids,) = [key async for key in server.scan_iter(match=f"*{bench.vhost.redis_prefix}*:ids")]
        assert 0 < await server.pttl(ids) <= 300_000
        keys = [key async for key in server.scan_iter(match=f"*{bench.vhost.redis_prefix}*")]
        await server.delete(*keys)
        send(client, "1")
        send(client, "2")
        await consumer.has(2)
        await bench.acked()
        assert await server.zcard(ids) == 2
    assert bodies(consumer.received) == ["1", "2"]
    assert bench.counter("deduplicated") == 1


async def test_kill_9_under_load_hands_each_over_once(bench: Bench, dispatcher_process: Starter) -> None:
    """Producers send everything twice, and the dispatcher dies three times in the middle."""
    one = dispatcher_process(orders=lane(**DEDUP))
    one.ready()
    client = await bench.client()
    consumers = [await bench.joined(f"c{number}") for number in range(2)]
    chance = random.Random(1)
    for round_ in range(4):
        for number in range(250):
            send(client, f"{round_}.{number}", f"g{number % 20}")
            if number >= 20:
                send(client, f"{round_}.{number - chance.randrange(20)}", f"g{number % 20}")
        if round_ < 3:
            had = sum(len(c.received) for c in consumers)
            await eventually(lambda had=had: sum(len(c.received) for c in consumers) > had + 20)
            one.kill9()
            one.start()
    await client.confirmed()

    def received() -> list[str]:
        return [body for consumer in consumers for body in bodies(consumer.received)]

    await eventually(lambda: len(received()) >= 1_000)
    await asyncio.to_thread(one.ready)

    async def empty() -> bool:
        return (
            await client.ready("in") == 0
            and 'held{lane="orders"} 0.0' in (await asyncio.to_thread(one.get, "/metrics"))[1]
        )

    await eventually(empty)
    assert len(received()) == len(set(received())) == 1_000


async def test_a_lane_with_another_window_is_led_anew_and_keeps_what_is_in_it(bench: Bench) -> None:
    await bench.run(orders=lane(**DEDUP))
    client = await bench.client()
    consumer = await bench.joined("c1")
    send(client, "1")
    await consumer.has(1)
    settings = bench.settings(orders=lane(dedup={"window": "10m", "max_ids": 5_000}))
    bench.runners["orders"].reconfigure(settings.lanes["orders"])
    await eventually(lambda: bench.runners["orders"].leaderships == 2)
    send(client, "1")
    send(client, "2")
    await consumer.has(2)
    assert bodies(consumer.received) == ["1", "2"]
