"""A leader that commits while everything fails that can: nothing lost, doubled or turned round."""

from __future__ import annotations

import asyncio
import random

import pytest

from dispatcher.core.effects import Effects
from dispatcher.core.records import JournalReset, OpenEntry
from dispatcher.errors import Fenced
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.redis_store import LaneStore
from tests.redis_store.conftest import Lane
from tests.redis_store.proxy import Proxy
from tests.redis_store.samples import checkpoint, dispatched, entry, step
from tests.waiting import TIMEOUT_S, eventually

FAULTS = 25


class Leader:
    """Commits one record after the other and remembers them all, as the core does."""

    def __init__(self, lane: Lane) -> None:
        self.memory: list[OpenEntry] = []
        self.futures: list[asyncio.Future[None]] = []
        lane.whole_state = self._checkpoint

    def commit(self, store: LaneStore) -> None:
        record = dispatched(len(self.memory) + 1)
        self.memory.append(entry(record))
        self.futures.append(store.commit(step(record)))

    def _checkpoint(self) -> Effects:
        return checkpoint(*self.memory)


class Faults:
    """One fault after another, each over before the next."""

    def __init__(self, seed: int, lane: Lane, proxy: Proxy, server: LocalRedis) -> None:
        self._random = random.Random(seed)
        self._lane, self._proxy, self._server = lane, proxy, server
        self.lossy = 0

    async def one(self) -> None:
        faults = [self._cut, self._lose_replies, self._hold_requests, self._pause, self._flush_scripts]
        weights = [4, 4, 4, 2, 2]
        if self._random.random() < 0.2:
            faults, weights = [self._restart, self._empty], [1, 1]
        [fault] = self._random.choices(faults, weights)
        await fault()

    async def _cut(self) -> None:
        self._proxy.cut()

    async def _lose_replies(self) -> None:
        self._proxy.swallow_replies = True
        await self._a_moment()
        self._proxy.cut()
        self._proxy.swallow_replies = False

    async def _hold_requests(self) -> None:
        self._proxy.hold_requests_after(self._random.randrange(3_000))
        await self._a_moment()
        if self._random.random() < 0.5:
            self._proxy.cut()  # in the middle of a command
        self._proxy.release_requests()

    async def _pause(self) -> None:
        async with self._lane.client() as client:
            await client.execute_command("CLIENT", "PAUSE", str(self._random.randrange(400)), "ALL")

    async def _flush_scripts(self) -> None:
        async with self._lane.client() as client:
            await client.script_flush()

    async def _restart(self) -> None:
        self._server.kill9()
        await asyncio.to_thread(self._server.start)

    async def _empty(self) -> None:
        self.lossy += 1
        async with self._lane.client() as client:
            await client.flushall()

    async def _a_moment(self) -> None:
        await asyncio.sleep(self._random.random() / 10)  # sleeps: the length of a fault


@pytest.mark.parametrize("seed", [0, 1, 2, 1008])
async def test_every_commit_is_applied_once_and_in_order(
    own_redis: LocalRedis, own_lane: Lane, seed: int
) -> None:
    print(f"seed {seed}")
    leader = Leader(own_lane)
    async with Proxy(own_lane.url) as proxy:
        store = await own_lane.lead(proxy.url, timeout_ms=150)
        faults = Faults(seed, own_lane, proxy, own_redis)
        for _ in range(FAULTS):
            fault = asyncio.ensure_future(faults.one())
            while not fault.done() or store.pending > 20:
                if store.pending < 40:
                    leader.commit(store)
                await asyncio.sleep(0.001)  # sleeps: a tick's length
            await fault
        leader.commit(store)  # a loss is seen by the next commit or connection
        await asyncio.wait_for(asyncio.gather(*leader.futures), TIMEOUT_S)
        await eventually(lambda: store.available)
    assert len(own_lane.gaps) <= faults.lossy
    found = await own_lane.read()
    assert found.complete
    assert [record for record in found.records if not isinstance(record, JournalReset)] == leader.memory
    assert store.pending == 0


async def test_leaders_that_take_over_from_each_other(own_lane: Lane) -> None:
    """What a leader was told is applied is there for the next one, and nothing else of it comes later."""
    applied: list[OpenEntry] = []
    async with Proxy(own_lane.url) as proxy:
        for turn in range(12):
            store = await own_lane.lead(proxy.url)
            confirmed, unsure = dispatched(10 * turn + 1), dispatched(10 * turn + 2)
            await store.commit(step(confirmed))
            proxy.hold_requests_after(turn * 50)
            late = store.commit(step(unsure))
            successor = await own_lane.open()
            records = (await successor.lead(0, ["in"])).records
            assert records[: len(applied) + 1] == [*applied, entry(confirmed)]
            assert records[len(applied) + 1 :] in ([], [entry(unsure)])
            applied = [record for record in records if isinstance(record, OpenEntry)]
            proxy.release_requests()
            if entry(unsure) in applied:
                await late
            else:
                with pytest.raises(Fenced):
                    await late
            await successor.close()
    assert (await own_lane.read()).records == applied
