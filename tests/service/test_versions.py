"""A replica that finds what a later version wrote says so, changes nothing, and lets that version lead."""

from __future__ import annotations

import asyncio

import redis

from dispatcher.redis_store.scripts import LaneKeys
from tests.service.clients import Client
from tests.service.conftest import Starter
from tests.service.harness import LANE, Bench, lane
from tests.waiting import eventually

#: No version has had so many kinds of records.
UNKNOWN_KIND = 200


async def is_free(client: Client, lock: str) -> bool:
    return await client.consumers(lock) == 0


async def test_a_record_of_a_later_version_stops_this_one_only(
    bench: Bench, dispatcher_process: Starter
) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    client.send("in", b"1", "g")
    await consumer.has(1)
    await bench.crash()
    journal = LaneKeys.of(bench.vhost.redis_prefix, LANE).journal
    with redis.Redis.from_url(bench.vhost.redis_url) as store:
        ((latest, fields),) = store.xrevrange(journal, count=1)
        later = latest.replace(b"-0", b"-1")
        store.xadd(journal, {b"r": fields[b"r"] + bytes((UNKNOWN_KIND, 1, 2, 3))}, id=later)
        before = store.xrange(journal)
        old = dispatcher_process(orders=lane())
        said = (
            f"Redis: entry {later.decode()} of the journal {journal}: has a record of kind "
            f"{UNKNOWN_KIND}, and this version knows up to 18: a later one wrote it; upgrade this replica "
            "(to go back to its version, let the later one empty the lane, stop it and delete the lane's "
            "keys in Redis)"
        )
        await eventually(lambda: old.logged("lane_interrupted"))
        assert [record["problem"] for record in old.logged("lane_interrupted")] == [said], "once"
        await eventually(lambda: old.get("/readyz") == (503, f"orders: {said}\n"))
        assert store.xrange(journal) == before
        await eventually(lambda: is_free(client, bench.names().lock), what="the lane to be left to others")
        await asyncio.to_thread(old.terminate)
        store.xdel(journal, later)  # what follows is what it would be for the later version
    await bench.run(orders=lane())
    consumer.release()
    client.send("in", b"2", "g")
    assert [copy.body for copy in await consumer.has(2)] == [b"1", b"2"]
    assert [copy.attempt for copy in consumer.received] == [1, 1]
