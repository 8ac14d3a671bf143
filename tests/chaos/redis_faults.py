"""What happens to Redis' primary on a cluster: another one takes its place, which lacks some writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

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
        async with self._alone(happened) as redis:
            if redis is not None:
                await self._fail_over(redis, fault, happened, unseen=False)

    async def lose_redis_writes(self, fault: Fault, happened: Happened) -> None:
        """The same of a replica that was cut off, and knows nothing of what was written meanwhile."""
        async with self._alone(happened) as redis:
            if redis is not None:
                await self._fail_over(redis, fault, happened, unseen=True)

    async def flip_redis(self, fault: Fault, happened: Happened) -> None:
        """There and back: each lacks what the other one got."""
        async with self._alone(happened) as redis:
            if redis is not None and redis.flips:
                await self._there_and_back(redis, fault, happened)
            elif redis is not None:
                await self._fail_over(redis, fault, happened, unseen=True)
                await self._fail_over(redis, fault, happened, unseen=True)

    @asynccontextmanager
    async def _alone(self, happened: Happened) -> AsyncIterator[FailOver | None]:
        """None: something else is done to it now."""
        assert self._stage.cluster is not None
        if self._redis_busy.locked():
            happened.note = "skipped: it fails over already"
            yield None
            return
        async with self._redis_busy:
            yield self._stage.cluster.fail_over

    async def _fail_over(self, redis: FailOver, fault: Fault, happened: Happened, *, unseen: bool) -> None:
        pair, lanes = await self._pair(redis, fault, happened)
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

    async def _there_and_back(self, redis: FailOver, fault: Fault, happened: Happened) -> None:
        pair, lanes = await self._pair(redis, fault, happened)
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

    async def _pair(self, redis: FailOver, fault: Fault, happened: Happened) -> tuple[Pair, frozenset[str]]:
        """Also the lanes that are there."""
        lane = self._lane(fault)
        pair = await asyncio.to_thread(redis.pair, PREFIX, lane.name)
        names = [one.name for one in self._stage.lanes]
        lanes = frozenset(await asyncio.to_thread(lambda: [n for n in names if redis.has(pair, PREFIX, n)]))
        happened.target = ", ".join(sorted(lanes))
        return pair, lanes

    def _lead_to(self, server: LocalRedis) -> None:
        for replica in self._stage.replicas:
            replica.redis.point_at(server.url)
            replica.redis.cut()

    def _noted(self, since: float, back_to: float, lanes: frozenset[str]) -> None:
        outage = Outage(
            since, time.monotonic(), killed=True, back_to=back_to, promoted=True, lanes=lanes
        )  # fmt: skip
        self._stage.redis_outages.append(outage)
