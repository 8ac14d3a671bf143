"""Commits whose answer is late, lost or an error: each is applied exactly once, in order, by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dispatcher.errors import Fenced, StoreUnavailable
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.redis_store import LaneStore
from tests.redis_store.conftest import SHORT_TIMEOUT_MS, Lane, now_ms
from tests.redis_store.proxy import Proxy
from tests.redis_store.samples import dispatched, entry, step
from tests.waiting import eventually


@pytest.fixture
async def proxy(lane: Lane) -> AsyncIterator[Proxy]:
    async with Proxy(lane.url) as proxy:
        yield proxy


async def test_a_commit_whose_reply_was_lost_is_applied_once(lane: Lane, proxy: Proxy) -> None:
    store = await lane.lead(proxy.url)
    await store.commit(step(dispatched(1)))
    before = await lane.ordinal()
    proxy.swallow_replies = True
    futures = [store.commit(step(dispatched(number))) for number in (2, 3)]

    async def applied() -> bool:
        return await lane.ordinal() == before + 2

    await eventually(applied)
    assert not any(future.done() for future in futures)
    proxy.cut()
    proxy.swallow_replies = False
    futures.append(store.commit(step(dispatched(4))))
    await asyncio.gather(*futures)
    assert lane.availability == [False, True]
    assert lane.gaps == []
    assert (await lane.read()).records == [entry(dispatched(number)) for number in (1, 2, 3, 4)]
    assert len(await lane.journal_ids()) == 4


async def test_no_reply_in_time_is_a_lost_connection(lane: Lane, proxy: Proxy) -> None:
    store = await lane.lead(proxy.url, timeout_ms=SHORT_TIMEOUT_MS)
    proxy.swallow_replies = True
    future = store.commit(step(dispatched(1)))
    await eventually(lambda: not store.available)
    assert f"did not answer within {SHORT_TIMEOUT_MS} ms" in (store.problem or "")
    assert not future.done()
    proxy.swallow_replies = False
    await future
    assert (await lane.read()).records == [entry(dispatched(1))]


async def test_commits_wait_while_redis_is_away(lane: Lane, proxy: Proxy) -> None:
    store = await lane.lead(proxy.url)
    proxy.refuse = True
    proxy.cut()
    await eventually(lambda: not store.available)
    futures = [store.commit(step(dispatched(number))) for number in range(1, 51)]
    assert store.pending == 50
    proxy.refuse = False
    await asyncio.gather(*futures)
    assert store.pending == 0
    assert lane.availability == [False, True]
    assert (await lane.read()).records == [entry(dispatched(number)) for number in range(1, 51)]


async def test_an_idle_lane_notices_that_redis_is_back(lane: Lane, proxy: Proxy) -> None:
    store = await lane.lead(proxy.url)
    proxy.cut()
    await eventually(lambda: lane.availability == [False, True])
    assert store.problem is None


async def test_a_leader_that_was_away_learns_that_it_was_fenced(lane: Lane, proxy: Proxy) -> None:
    old = await lane.lead(proxy.url)
    proxy.refuse = True
    proxy.cut()
    await eventually(lambda: not old.available)
    waiting = old.commit(step(dispatched(1)))
    new = await lane.lead()
    proxy.refuse = False
    with pytest.raises(Fenced):
        await waiting
    await new.commit(step(dispatched(2)))
    assert (await lane.read()).records == [entry(dispatched(2))]


async def test_a_lead_that_got_no_answer_is_tried_again_by_its_caller(lane: Lane, proxy: Proxy) -> None:
    store = await lane.open(proxy.url, SHORT_TIMEOUT_MS)
    proxy.swallow_replies = True
    with pytest.raises(StoreUnavailable, match="did not answer within"):
        await store.lead(now_ms(), ["in"])
    with pytest.raises(StoreUnavailable, match="did not answer within"):
        await store.lead(now_ms(), ["in"])
    proxy.swallow_replies = False
    await store.lead(now_ms(), ["in"])
    await store.commit(step(dispatched(1)))


async def test_a_lead_reconnects_at_once(lane: Lane, proxy: Proxy) -> None:
    store = await lane.open(proxy.url)
    proxy.cut()
    await eventually(lambda: not store.available)
    await store.lead(now_ms(), ["in"])
    assert store.available


async def test_leading_anew_gives_up_what_was_unanswered(lane: Lane, proxy: Proxy) -> None:
    store = await lane.lead(proxy.url)
    proxy.refuse = True
    proxy.cut()
    await eventually(lambda: not store.available)
    waiting = store.commit(step(dispatched(1)))
    proxy.refuse = False
    snapshot = await store.lead(now_ms(), ["in"])
    with pytest.raises(Fenced, match="led anew"):
        await waiting
    assert (snapshot.records, store.pending) == ([], 0)
    await store.commit(step(dispatched(2)))


async def test_flushed_scripts_are_loaded_again(own_lane: Lane) -> None:
    store = await own_lane.lead()
    async with own_lane.client() as client:
        await client.script_flush()
    await asyncio.gather(*[store.commit(step(dispatched(number))) for number in (1, 2, 3)])
    assert (await own_lane.read()).records == [entry(dispatched(number)) for number in (1, 2, 3)]


async def test_a_slow_redis_applies_everything_once(own_lane: Lane) -> None:
    store = await own_lane.lead(timeout_ms=SHORT_TIMEOUT_MS)
    async with own_lane.client() as client:
        await client.execute_command("CLIENT", "PAUSE", "1200", "ALL")
    # Those connections that are given up in the pause are read at its end, after or before the last one.
    await asyncio.gather(*[store.commit(step(dispatched(number))) for number in range(1, 21)])
    assert own_lane.availability == [False, True]
    assert own_lane.gaps == []
    assert (await own_lane.read()).records == [entry(dispatched(number)) for number in range(1, 21)]


@pytest.mark.parametrize(
    ("broken", "word", "repaired"),
    [
        (("maxmemory", "1"), "OOM", ("maxmemory", "0")),
        (("min-replicas-to-write", "1"), "NOREPLICAS", ("min-replicas-to-write", "0")),
    ],
    ids=["full", "without replicas"],
)
async def test_a_redis_that_refuses_writes_is_unavailable_and_says_why(
    own_lane: Lane, broken: tuple[str, str], word: str, repaired: tuple[str, str]
) -> None:
    store = await own_lane.lead()
    await store.commit(step(dispatched(1)))
    async with own_lane.client() as client:
        await client.config_set(*broken)
        future = store.commit(step(dispatched(2)))
        await eventually(lambda: word in (store.problem or ""))
        assert not store.available
        await client.config_set(*repaired)
    await future
    assert own_lane.availability == [False, True]  # connecting alone is no proof that it works
    assert (await own_lane.read()).records == [entry(dispatched(1)), entry(dispatched(2))]


async def test_a_redis_that_became_a_replica_is_unavailable(own_lane: Lane) -> None:
    store = await own_lane.lead()
    async with own_lane.client() as client:
        await client.execute_command("REPLICAOF", "127.0.0.1", "1")
        future = store.commit(step(dispatched(1)))
        await eventually(lambda: "READONLY" in (store.problem or ""))
        await client.execute_command("REPLICAOF", "NO", "ONE")
    await future


async def test_half_of_a_commit_never_counts_as_applied(own_lane: Lane) -> None:
    store = await own_lane.lead()
    async with own_lane.client() as client:
        await client.set(own_lane.keys.journal, "somebody else's")
        future = store.commit(step(dispatched(1)))
        await eventually(lambda: "WRONGTYPE" in (store.problem or ""))
        await client.delete(own_lane.keys.journal)
    await future
    assert (await own_lane.read()).records == [entry(dispatched(1))]


async def test_an_answer_that_is_not_redis_ends_the_connection(lane: Lane) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreUnavailable, match="does not speak like Redis"):
            await lane.open(f"redis://127.0.0.1:{port}/0")


async def test_a_redis_restarted_with_all_data_goes_on(own_redis: LocalRedis, own_lane: Lane) -> None:
    store = await own_lane.lead()
    await store.commit(step(dispatched(1)))
    own_redis.kill9()
    await eventually(lambda: not store.available)
    future = store.commit(step(dispatched(2)))
    await asyncio.to_thread(own_redis.start)
    await future
    assert own_lane.gaps == []
    snapshot = await own_lane.read()
    assert snapshot.complete
    assert snapshot.records == [entry(dispatched(1)), entry(dispatched(2))]


async def test_a_restart_that_an_idle_leader_has_verified_stays_complete(
    own_redis: LocalRedis, own_lane: Lane
) -> None:
    await own_lane.lead()
    own_redis.kill9()
    await eventually(lambda: own_lane.availability == [False])
    await asyncio.to_thread(own_redis.start)
    await eventually(lambda: own_lane.availability == [False, True])
    assert (await own_lane.read()).complete


async def test_a_restart_that_no_leader_saw_is_not_complete(own_redis: LocalRedis, own_lane: Lane) -> None:
    store: LaneStore = await own_lane.lead()
    await store.commit(step(dispatched(1)))
    await store.close()
    own_redis.stop()
    own_redis.start()
    snapshot = await own_lane.read()
    assert not snapshot.complete
    assert snapshot.records == [entry(dispatched(1))]
