"""Redis comes back without writes that it had confirmed: noticed, and the whole state is written back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio

from dispatcher.core.effects import Snapshot
from dispatcher.errors import Fenced, StoreUnavailable
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.nodes.ports import free_ports
from dispatcher.redis_store import LaneStore
from dispatcher.redis_store.scripts import APPLIED, BEGIN_RESTORE, evaluate
from dispatcher.redis_store.tables import packed_owners
from tests.redis_store.conftest import SHORT_TIMEOUT_MS, Lane, now_ms
from tests.redis_store.proxy import Proxy
from tests.redis_store.samples import checkpoint, dispatched, entry, incarnation, owned, step
from tests.waiting import eventually

#: More than two parts' worth, so that a restoration can be cut between parts.
MANY = 45_000


def whole_state(owners: int = 3, *tags: int) -> Snapshot:
    """Only its tables and records count: what a lane is that `write_state` wrote."""
    return Snapshot(
        0, True, False,
        records=[entry(dispatched(tag)) for tag in tags or (1, 2)],
        owners={group: row for group, row in owned(owners).items() if row is not None},
        incarnations={1: incarnation("a"), 2: incarnation("b")},
        commands={"c-1": {"moved": 3}},
        operator_rows={b"lane": {"paused": True}},
        sequences={group: number for number, group in enumerate(owned(owners))},
    )  # fmt: skip


async def write_state(store: LaneStore, state: Snapshot) -> None:
    await store.commit(
        step(
            *state.records, owners=dict(state.owners), incarnations=dict(state.incarnations),
            commands=state.commands, operator_rows=dict(state.operator_rows), sequences=dict(state.sequences),
        )
    )  # fmt: skip


def answer_gaps_with(lane: Lane, state: Snapshot) -> None:
    lane.whole_state = lambda: checkpoint(
        *state.records, owners=dict(state.owners), incarnations=dict(state.incarnations),
        commands=state.commands, operator_rows=dict(state.operator_rows), sequences=dict(state.sequences),
    )  # fmt: skip


async def assert_holds(lane: Lane, state: Snapshot) -> None:
    found = await lane.read()
    assert found.complete
    assert found.records == checkpoint(*state.records).records
    assert (found.owners, found.incarnations) == (state.owners, state.incarnations)
    assert found.commands == state.commands
    assert (found.operator_rows, found.sequences) == (state.operator_rows, state.sequences)


@pytest.fixture
async def client(own_lane: Lane) -> AsyncIterator[redis.asyncio.Redis]:
    async with own_lane.client() as client:
        yield client


async def test_a_flushed_redis_is_noticed_by_the_next_commit(
    own_lane: Lane, client: redis.asyncio.Redis
) -> None:
    store = await own_lane.lead()
    await client.flushall()
    future = store.commit(step(dispatched(1)))
    await eventually(lambda: own_lane.gaps)
    assert not future.done()
    assert store.problem == "Redis lost the last writes of lane orders; its state is being written back"
    later = store.commit(step(dispatched(2)))
    assert store.pending == 2
    restored = store.restore(checkpoint(entry(dispatched(1)), entry(dispatched(2))))
    assert store.pending == 3
    after = store.commit(step(dispatched(3)))
    done: list[int] = []
    for number, each in enumerate((future, later, restored, after)):
        each.add_done_callback(lambda _, number=number: done.append(number))
    await after
    assert done == [0, 1, 2, 3]
    assert own_lane.availability == [False, True]
    expected = checkpoint(*(entry(dispatched(number)) for number in (1, 2, 3))).records
    assert (await own_lane.read()).records == expected


@pytest.mark.parametrize("committing", [False, True])
async def test_a_redis_that_came_back_empty(own_redis: LocalRedis, own_lane: Lane, committing: bool) -> None:
    store = await own_lane.lead()
    state = whole_state()
    await write_state(store, state)
    answer_gaps_with(own_lane, state)
    own_redis.kill9()
    await eventually(lambda: not store.available)
    future = store.commit(step(dispatched(2))) if committing else None
    own_redis.wipe()
    await asyncio.to_thread(own_redis.start)
    await eventually(lambda: store.available)
    assert own_lane.gaps == [store]
    if future is not None:
        await future
    await assert_holds(own_lane, state)


async def test_a_redis_that_came_back_with_older_data(
    own_redis: LocalRedis, own_lane: Lane, client: redis.asyncio.Redis
) -> None:
    store = await own_lane.lead()
    await write_state(store, whole_state(5, 1))
    data = Path((await client.config_get("dir"))["dir"])
    older = data.with_name("older")
    shutil.copytree(data, older)
    state = whole_state(2, 1, 2)
    await store.commit(step(dispatched(2), owners={b"group-%d" % number: None for number in (2, 3, 4)}))
    answer_gaps_with(own_lane, state)
    own_redis.kill9()
    shutil.rmtree(data)
    older.rename(data)
    await asyncio.to_thread(own_redis.start)
    await eventually(lambda: own_lane.gaps == [store] and store.available)
    await assert_holds(own_lane, state)


async def test_another_leader_of_the_emptied_redis_wins(own_lane: Lane, client: redis.asyncio.Redis) -> None:
    old = await own_lane.lead()
    await client.flushall()
    new = await own_lane.lead()
    own_lane.whole_state = lambda: checkpoint(entry(dispatched(7)))
    with pytest.raises(Fenced):
        await old.commit(step(dispatched(1)))
    await new.commit(step(dispatched(2)))
    assert own_lane.gaps == []


async def test_a_fenced_leader_does_not_write_its_state_back(
    own_lane: Lane, client: redis.asyncio.Redis
) -> None:
    old = await own_lane.lead()
    await client.flushall()
    lost = old.commit(step(dispatched(1)))
    await eventually(lambda: own_lane.gaps)
    new = await own_lane.lead()
    await new.commit(step(dispatched(2)))
    restored = old.restore(checkpoint(entry(dispatched(1))))
    for future in (lost, restored):
        with pytest.raises(Fenced):
            await future
    assert (await own_lane.read()).records == [entry(dispatched(2))]


async def test_a_restoration_that_is_cut_leaves_nothing_complete_and_begins_again(own_lane: Lane) -> None:
    state = whole_state(MANY)
    async with Proxy(own_lane.url) as proxy, own_lane.client() as client:
        store = await own_lane.lead(proxy.url, timeout_ms=SHORT_TIMEOUT_MS)
        await client.flushall()
        proxy.swallow_replies = True
        restored = store.restore(checkpoint(*state.records, owners=dict(state.owners)))
        await eventually(lambda: not store.available)
        proxy.refuse = True

        async def begun() -> bool:
            return bool(await client.hget(own_lane.keys.meta, "ordinal"))

        await eventually(begun)
        assert (await client.hget(own_lane.keys.meta, "ordinal")).startswith(b"restoring:")
        assert await client.hget(own_lane.keys.meta, "run_id") is None
        proxy.swallow_replies = proxy.refuse = False
        await restored
    found = await own_lane.read()
    assert (found.complete, found.owners) == (True, state.owners)
    assert found.records == checkpoint(*state.records).records


async def cut_off_in_the_second_part(
    lane: Lane, proxy: Proxy, store: LaneStore, state: Snapshot
) -> asyncio.Future[None]:
    """Begin a restoration, and wait until Redis has its first part and can't get more."""
    first_part_bytes = len(packed_owners(list(state.owners.items())[:20_000]))
    proxy.hold_requests_after(first_part_bytes + 100_000)
    restored = store.restore(checkpoint(*state.records, owners=dict(state.owners)))
    async with lane.client() as client:

        async def first_part() -> bool:
            return bool(await client.hlen(lane.keys.owners) == 20_000)

        await eventually(first_part)
    return restored


async def test_a_leader_killed_in_a_restoration_leaves_an_incomplete_lane(own_lane: Lane) -> None:
    state = whole_state(MANY)
    async with Proxy(own_lane.url) as proxy:
        store = await own_lane.lead(proxy.url)
        restored = await cut_off_in_the_second_part(own_lane, proxy, store, state)
        await store.close()
    with pytest.raises(StoreUnavailable):
        await restored
    snapshot = await own_lane.read()
    assert not snapshot.complete
    assert len(snapshot.owners) == 20_000
    again = await own_lane.lead()
    await again.commit(step(dispatched(9)))


async def test_redis_emptied_during_a_restoration(own_lane: Lane) -> None:
    state = whole_state(MANY)
    async with Proxy(own_lane.url) as proxy, own_lane.client() as client:
        store = await own_lane.lead(proxy.url)
        restored = await cut_off_in_the_second_part(own_lane, proxy, store, state)
        await client.flushall()
        proxy.release_requests()
        await restored
    found = await own_lane.read()
    assert (found.complete, found.owners) == (True, state.owners)
    assert own_lane.gaps == []


async def test_a_later_restoration_replaces_the_one_under_way(own_lane: Lane) -> None:
    store = await own_lane.lead()
    first = store.restore(checkpoint(entry(dispatched(1)), owners=owned(MANY)))
    between = store.commit(step(dispatched(2)))
    second = store.restore(checkpoint(entry(dispatched(3)), owners=owned(2)))
    after = store.commit(step(dispatched(4)))
    await asyncio.gather(first, between, second, after)
    found = await own_lane.read()
    assert found.records == checkpoint(entry(dispatched(3)), entry(dispatched(4))).records
    assert found.owners == owned(2)


async def test_late_words_of_a_restoration_that_was_given_up_change_nothing(own_lane: Lane) -> None:
    async with Proxy(own_lane.url) as proxy, own_lane.client() as client:
        store = await own_lane.lead(proxy.url)
        await store.commit(step(dispatched(1)))
        await client.execute_command("CLIENT", "PAUSE", "1500", "WRITE")
        restored = store.restore(checkpoint(entry(dispatched(1)), owners=owned(100)))
        await eventually(lambda: len(own_lane.availability) == 1)
        await restored
        # Attempts that timed out in the pause ran at its end too, in whatever order Redis read them.
        await store.commit(step(dispatched(2)))
    found = await own_lane.read()
    assert found.records == checkpoint(entry(dispatched(1)), entry(dispatched(2))).records
    assert found.owners == owned(100)


async def test_a_restoration_whose_last_answer_was_lost_is_over(lane: Lane) -> None:
    store = await lane.lead()
    state = whole_state()
    await store.restore(checkpoint(*state.records, owners=dict(state.owners)))
    async with lane.client() as client:
        leader, ordinal = await client.hmget(lane.keys.meta, "leader", "ordinal")
        for run in (1, 2):  # the same words late, and its next attempt
            again = evaluate(BEGIN_RESTORE, lane.keys, leader, ordinal, run, '["in"]')
            assert await client.execute_command(*again) == APPLIED
    await store.commit(step(dispatched(3)))
    found = await lane.read()
    assert (found.complete, found.owners) == (True, state.owners)
    assert found.records == checkpoint(*state.records, entry(dispatched(3))).records


async def test_a_restoration_does_not_claim_more_than_the_leader_knows(own_lane: Lane) -> None:
    store = await own_lane.open()
    assert not (await store.lead(now_ms(), ["in"])).complete
    await store.restore(checkpoint())
    assert not (await store.lead(now_ms(), ["in"])).complete
    await store.confirm_complete()
    await store.restore(checkpoint())
    assert (await store.lead(now_ms(), ["in"])).complete


async def test_a_master_that_was_a_replica_meanwhile_is_not_trusted(
    own_lane: Lane, client: redis.asyncio.Redis
) -> None:
    """While it was one, another master may have taken writes that never came back to it."""
    await own_lane.lead()
    assert (await own_lane.read()).complete
    await client.replicaof("127.0.0.1", str(free_ports(1)[0]))
    await client.replicaof("NO", "ONE")
    assert not (await own_lane.read()).complete


async def test_a_leader_goes_on_with_a_master_that_was_a_replica_meanwhile(
    own_lane: Lane, client: redis.asyncio.Redis
) -> None:
    store = await own_lane.lead()
    await write_state(store, whole_state())
    await client.replicaof("127.0.0.1", str(free_ports(1)[0]))
    future = store.commit(step())
    await eventually(lambda: not store.available)
    await client.replicaof("NO", "ONE")
    await future
    assert own_lane.gaps == []
    assert (await own_lane.read()).complete
