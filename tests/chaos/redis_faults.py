"""What happens to Redis' primary on a cluster: another one takes its place, which lacks some writes."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext

from dispatcher.nodes import LocalRedis
from tests.chaos.commands import Happened
from tests.chaos.fail_overs import FailOver, Pair
from tests.chaos.lanes import LaneOnStage
from tests.chaos.parts import Outage
from tests.chaos.plan import Fault
from tests.chaos.stage import PREFIX, Stage
from tests.redis_store.cluster_nodes import ask, stopped


class RedisFaults:
    """The part of `Faults` that is about a Redis with a replica."""

    _stage: Stage
    _redis_busy: asyncio.Lock

    def _lane(self, fault: Fault) -> LaneOnStage:
        raise NotImplementedError

    async def _last(self, fault: Fault) -> None:
        raise NotImplementedError

    async def _led(self) -> bool:
        raise NotImplementedError

    async def lose_redis_primary(self, fault: Fault, happened: Happened) -> None:
        """A replica takes its place, perhaps without what was written last."""
        async with self._redis_busy:
            await self._fail_over(fault, happened, unseen=False)

    async def lose_redis_writes(self, fault: Fault, happened: Happened) -> None:
        """The same of a replica that was cut off, and knows nothing of what was written meanwhile."""
        async with self._redis_busy:
            await self._fail_over(fault, happened, unseen=True)

    async def flip_redis(self, fault: Fault, happened: Happened) -> None:
        """There and back: each lacks what the other one got."""
        async with self._redis_busy:
            if self._redis().flips:
                await self._there_and_back(fault, happened)
                return
            await self._fail_over(fault, happened, unseen=True)
            await self._fail_over(fault, happened, unseen=True)

    async def _fail_over(self, fault: Fault, happened: Happened, *, unseen: bool) -> None:
        redis, pair, lanes = await self._pair(fault, happened)
        back_to = time.monotonic()
        with stopped(pair.replica) if unseen else nullcontext():
            if unseen:
                await asyncio.to_thread(ask, pair.primary, "CLIENT", "KILL", "TYPE", "replica")
                await self._last(fault)
            if is_led := await self._led():
                since = time.monotonic()
                await asyncio.to_thread(pair.primary.kill9)
        if not is_led:
            happened.note = "skipped: nobody leads"
            await asyncio.to_thread(redis.retire, pair.replica)
            return
        await asyncio.to_thread(redis.promote, pair)
        self._lead_to(pair.replica)
        self._noted(since, back_to if unseen else since, lanes)
        await asyncio.to_thread(redis.retire, pair.primary)

    async def _there_and_back(self, fault: Fault, happened: Happened) -> None:
        redis, pair, lanes = await self._pair(fault, happened)
        there_at = time.monotonic()
        await asyncio.to_thread(redis.promote, pair)
        self._lead_to(pair.replica)
        self._noted(there_at, there_at, lanes)
        await self._last(fault)
        if not await self._led():
            happened.note = "stayed there: nobody leads"
            await asyncio.to_thread(redis.retire, pair.primary)
            return
        back_at = time.monotonic()
        self._lead_to(pair.primary)
        self._noted(back_at, there_at, lanes)
        await asyncio.to_thread(redis.retire, pair.replica)

    async def _pair(self, fault: Fault, happened: Happened) -> tuple[FailOver, Pair, frozenset[str]]:
        """Also the lanes that are there."""
        redis, lane = self._redis(), self._lane(fault)
        pair = await asyncio.to_thread(redis.pair, PREFIX, lane.name)
        names = [one.name for one in self._stage.lanes]
        lanes = frozenset(await asyncio.to_thread(lambda: [n for n in names if redis.has(pair, PREFIX, n)]))
        happened.target = ", ".join(sorted(lanes))
        return redis, pair, lanes

    def _lead_to(self, server: LocalRedis) -> None:
        for replica in self._stage.replicas:
            replica.redis.point_at(server.url)
            replica.redis.cut()

    def _noted(self, since: float, back_to: float, lanes: frozenset[str]) -> None:
        outage = Outage(
            since, time.monotonic(), killed=True, back_to=back_to, promoted=True, lanes=lanes
        )  # fmt: skip
        self._stage.redis_outages.append(outage)

    def _redis(self) -> FailOver:
        assert self._stage.cluster is not None
        return self._stage.cluster.fail_over
