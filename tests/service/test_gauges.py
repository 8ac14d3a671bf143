"""What the active dispatcher says of its dead queue and of Redis, for the metrics."""

from __future__ import annotations

import asyncio
from functools import partial

from pamqp import commands

from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.service.dead_letter_count import DeadLetterCount
from dispatcher.service.lane_runner import LaneRunner
from dispatcher.service.session import Session
from tests.service.harness import LANE, Bench, lane
from tests.waiting import eventually


class LooksOften(Session):
    dead_letters_type = partial(DeadLetterCount, look_s=0.05)  # type: ignore[assignment]


async def led(bench: Bench) -> None:
    await bench.run(wait=False, orders=lane("in"))
    bench.runners[LANE].session_type = LooksOften
    await bench.leads()
    await eventually(lambda: bench.status().get("dead_letters") is not None)


async def test_dead_letters_are_those_that_lie_in_the_queue_whoever_leads(bench: Bench) -> None:
    await led(bench)
    assert bench.status()["dead_letters"] == 0
    client = await bench.client()
    dead = bench.names().dead
    for body in (b"one", b"two"):
        client.send(dead, body, "g")
    await client.confirmed()
    await eventually(lambda: bench.status()["dead_letters"] == 2)
    await bench.crash()
    await led(bench)
    assert bench.status()["dead_letters"] == 2
    await client.link.call(client.channel, commands.Queue.Purge(queue=dead))
    await eventually(lambda: bench.status()["dead_letters"] == 0)


async def test_a_dead_queue_that_is_deleted_has_no_number_and_the_lane_goes_on(bench: Bench) -> None:
    await led(bench)
    assert bench.status()["dead_letters"] == 0
    client = await bench.client()
    await client.link.call(client.channel, commands.Queue.Delete(queue=bench.names().dead))
    await eventually(lambda: bench.status()["dead_letters"] is None)
    consumer = await bench.joined("c1")
    client.send("in", b"still here", "g")
    await consumer.has(1)
    assert bench.runners[LANE].leaderships == 1


async def test_a_lane_that_cannot_be_led_because_of_redis_says_so_until_it_can(bench: Bench) -> None:
    with LocalRedis() as redis:
        settings = bench.settings(redis_url=redis.url, orders=lane("in"))
        redis.stop()
        runner = bench.runners[LANE] = LaneRunner(settings, settings.lanes[LANE])
        running = asyncio.create_task(runner.run())
        await eventually(lambda: bench.status().get("redis_unavailable") is True)
        assert runner.leaderships == 0
        redis.start()
        await bench.leads()
        assert bench.status()["redis_unavailable"] is False
        await runner.stop()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_groups_wait_for_room_and_for_nothing_else(bench: Bench) -> None:
    """What an autoscaler adds consumers by."""
    await bench.run(orders=lane("in"))
    client = await bench.client()
    first = await bench.joined("c1", prefetch=2, hold=True)
    for group in ("a", "b", "c", "d", "a", "c"):
        client.send("in", b"", group)
    await client.confirmed()
    await first.has(2)
    await eventually(lambda: bench.status()["groups_waiting"] == 3, what="a's second, c and d")
    await bench.ask("groups.pause", group="d")
    await eventually(lambda: bench.status()["groups_waiting"] == 2, what="not for room: d is paused")
    second = await bench.joined("c2", prefetch=10, hold=True)
    await second.has(2)
    await eventually(lambda: bench.status()["groups_waiting"] == 1, what="a waits for its owner")
    first.release()
    await eventually(lambda: bench.status()["groups_waiting"] == 0)


async def test_parked_groups_are_counted(bench: Bench) -> None:
    await bench.run(orders=lane("in", look_ahead=8, park_after="100ms"))
    client = await bench.client()
    for number in range(40):
        client.send("in", b"", f"g{number % 4}")
    await client.confirmed()
    await eventually(lambda: bench.status()["parked_groups"] > 0, what="what waits is parked")
    assert bench.status()["parked_groups"] <= 4
    consumer = await bench.joined("c1", prefetch=50)
    await consumer.has(40)
    await eventually(lambda: bench.status()["parked_groups"] == 0)
