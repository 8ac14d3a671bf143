"""Who leads a lane, who stands by, and how leaderships ended: as the leader tells it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from dispatcher.redis_store.scripts import LaneKeys, pack
from dispatcher.service.lane_runner import LaneRunner
from dispatcher.service.replicas import LEADERSHIPS_KEPT, Replicas, this_process
from dispatcher.settings import RedisSettings
from tests.conftest import Vhost
from tests.service.harness import LANE, Bench, lane
from tests.waiting import eventually

OTHER = "host-b:77"


class QuickReplicas(Replicas):
    beat_s = 0.05
    gone_s = 1.0


class QuickRunner(LaneRunner):
    replicas_type = QuickReplicas


@pytest.fixture(autouse=True)
def quick(bench: Bench) -> None:
    bench.runner_type = QuickRunner


@pytest.fixture
def store(vhost: Vhost) -> Any:
    with redis.Redis.from_url(vhost.redis_url) as client:
        yield client


@contextlib.asynccontextmanager
async def standing_by(bench: Bench) -> AsyncIterator[LaneRunner]:
    settings = bench.settings(orders=lane())
    runner = QuickRunner(settings, settings.lanes[LANE])
    task = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        await runner.stop()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def standbys(bench: Bench) -> list[str] | None:
    rows = bench.status().get("standbys")
    return None if rows is None else [row["dispatcher"] for row in rows]


def key(bench: Bench) -> str:
    return LaneKeys.of(bench.vhost.redis_prefix, LANE).replicas


async def test_a_standby_is_named_as_long_as_it_is_there(bench: Bench) -> None:
    await bench.run(orders=lane())
    await eventually(lambda: standbys(bench) == [])
    async with standing_by(bench):
        await eventually(lambda: standbys(bench) == [this_process()])
        assert 0 <= bench.status()["standbys"][0]["since_ms"] < 60_000
        told = await bench.ask("status")
        assert [row["dispatcher"] for row in told["standbys"]] == [this_process()]
    await eventually(lambda: standbys(bench) == [], what="the standby that has left to be forgotten")


async def test_a_leadership_says_why_it_ended_if_it_can(bench: Bench) -> None:
    await bench.run(orders=lane())
    await eventually(lambda: standbys(bench) == [])
    first = bench.status()["lane_epoch"]
    assert [row["lane_epoch"] for row in bench.status()["leaderships"]] == [first]
    async with standing_by(bench) as other:
        bench.runners["other"] = other
        await bench.stop()
        await bench.leads("other")
        await eventually(lambda: _former(bench, "other") == [(first, "on purpose (stopped, or led anew)")])
        row = bench.status("other")["leaderships"][1]
        assert row["dispatcher"] == this_process()
        assert row["began_ms"] >= row["ended_ms"] >= 0


async def _has_led(vhost: Vhost) -> QuickReplicas:
    """One that led with the number 7, and has not said yet how that ended."""
    replicas = QuickReplicas(RedisSettings(url=vhost.redis_url), LANE, vhost.redis_prefix, lambda: 0)
    leading = asyncio.create_task(replicas.lead(7))
    await eventually(lambda: replicas.status()["standbys"] == [])
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    return replicas


async def test_a_redis_that_is_slow_is_told_why_a_leadership_ended(vhost: Vhost, store: Any) -> None:
    """It drops what it has not done yet for a connection that was reset, as one with an unread answer is."""
    replicas = await _has_led(vhost)
    assert replicas._connection is not None
    replicas._connection.send(pack("PING"), lambda _: None)
    store.ping()  # it was answered by then
    store.client_pause(200)
    replicas.ended("tired")
    await replicas.close()
    for _ in range(3):
        await asyncio.sleep(0)  # sleeps: until the loop has closed the socket
    row = store.hget(LaneKeys.of(vhost.redis_prefix, LANE).replicas, "ended 7")
    assert json.loads(row)["why"] == "tired"


async def test_who_stops_waiting_for_redis_leaves_no_connection(vhost: Vhost, store: Any) -> None:
    replicas = await _has_led(vhost)
    store.client_pause(200)
    replicas.ended("tired")
    closing = asyncio.create_task(replicas.close())
    await asyncio.sleep(0)  # sleeps: until it waits
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert replicas._connection is not None
    assert replicas._connection.lost == "left"


async def test_a_lane_has_stopped_when_redis_has_how_it_ended(bench: Bench, store: Any) -> None:
    await bench.run(orders=lane())
    await eventually(lambda: standbys(bench) == [])
    runner = bench.runners[LANE]
    store.client_pause(200)
    await runner.stop()
    assert runner._replicas._end_told.is_set()


async def test_a_lost_connection_is_told_as_the_reason(bench: Bench) -> None:
    await bench.run(orders=lane())
    await eventually(lambda: standbys(bench) == [])
    link = bench.runners[LANE]._link
    assert link is not None
    link.abort()
    await eventually(lambda: len(_former(bench)) == 1 and _former(bench)[0][1] is not None)
    assert "connection" in _former(bench)[0][1]


async def test_one_that_was_killed_has_no_reason_and_few_are_kept(bench: Bench, store: Any) -> None:
    rows = [
        {"lane_epoch": 100 - n, "dispatcher": OTHER, "began_ms": 1_000, "ended_ms": None, "why": None}
        for n in range(30)
    ]
    store.hset(key(bench), "leaderships", json.dumps(rows))
    await bench.run(orders=lane())
    await eventually(lambda: len(bench.status()["leaderships"]) == LEADERSHIPS_KEPT)
    assert [row[1] for row in _former(bench)] == [None] * (LEADERSHIPS_KEPT - 1)
    await eventually(lambda: len(json.loads(store.hget(key(bench), "leaderships"))) == LEADERSHIPS_KEPT)
    assert bench.status()["leaderships"][1]["dispatcher"] == OTHER


async def test_rows_of_others_are_read_as_far_as_they_go(bench: Bench, store: Any) -> None:
    store.hset(key(bench), mapping={"leaderships": b"\xff", "standby x:1": b"[]", "ended 9": b"{"})
    await bench.run(orders=lane())
    await eventually(lambda: standbys(bench) == ["x:1"])
    await eventually(lambda: store.hkeys(key(bench)) == [b"leaderships"], what="what is dead to be removed")


async def test_a_key_that_is_no_hash_makes_it_unknown_and_nothing_else(bench: Bench, store: Any) -> None:
    store.set(key(bench), "?")
    await bench.run(orders=lane())
    async with standing_by(bench):
        assert bench.status()["standbys"] is None
        await eventually(
            lambda: [row["dispatcher"] for row in bench.status()["leaderships"]] == [this_process()],
            what="the one that leads",
        )
        client, consumer = await bench.client(), await bench.joined("c")
        client.send("in", b"x", "g")
        await consumer.has(1)
        store.delete(key(bench))
        await eventually(lambda: standbys(bench) == [this_process()])


def _former(bench: Bench, name: str = LANE) -> list[tuple[int, Any]]:
    return [(row["lane_epoch"], row["why"]) for row in bench.status(name).get("leaderships", [])[1:]]
