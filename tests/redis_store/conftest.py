"""A lane of the test's own on a Redis, and a Redis that the test may kill."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis.asyncio

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.errors import StoreUnavailable
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.redis_store import LaneStore
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.settings import RedisSettings

#: Long against a loaded machine's pauses.
TIMEOUT_MS = 5_000
#: Of a test that waits for its end.
SHORT_TIMEOUT_MS = 500


class Lane:
    """Opens stores of one lane, remembers what they call back, and looks at its keys."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = f"test-{uuid.uuid4().hex[:12]}"
        self.keys = LaneKeys.of(self.prefix, "orders")
        self.gaps: list[LaneStore] = []
        self.availability: list[bool] = []
        #: What a gap is answered with at once, as a service would; None: the test does it.
        self.whole_state: Callable[[], Effects] | None = None
        self._running = contextlib.AsyncExitStack()

    async def open(self, url: str | None = None, timeout_ms: int = TIMEOUT_MS) -> LaneStore:
        settings = RedisSettings(url=url or self.url, timeout_ms=timeout_ms)
        opened: list[LaneStore] = []

        def on_gap() -> None:
            self.gaps.append(opened[0])
            if self.whole_state is not None:
                opened[0].restore(self.whole_state())

        opened.append(
            await LaneStore.open(
                settings, "orders", self.prefix, on_gap=on_gap, on_available=self.availability.append
            )
        )
        self._running.push_async_callback(opened[0].close)
        return opened[0]

    async def lead(
        self, url: str | None = None, inbounds: tuple[str, ...] = ("in",), timeout_ms: int = TIMEOUT_MS
    ) -> LaneStore:
        """A new store that leads and may say that Redis holds everything.

        A busy machine may take longer for that than a short time-out: then it is tried again.
        """
        while True:
            try:
                store = await self.open(url, timeout_ms)
                if not (await store.lead(now_ms(), inbounds)).complete:
                    await store.confirm_complete()
            except StoreUnavailable:
                if timeout_ms >= TIMEOUT_MS:
                    raise
                self.availability.clear()
            else:
                return store

    async def read(self, *inbounds: str) -> Snapshot:
        """What a new leader finds; it fences whoever led before."""
        store = await self.open()
        snapshot = await store.lead(now_ms(), inbounds or ("in",))
        await store.close()
        return snapshot

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[redis.asyncio.Redis]:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            yield client

    async def ordinal(self) -> int:
        """As Redis has it."""
        async with self.client() as client:
            return int(await client.hget(self.keys.meta, "ordinal") or -1)

    async def journal_ids(self) -> list[str]:
        async with self.client() as client:
            entries: list[Any] = await client.xrange(self.keys.journal)
            return [entry_id.decode() for entry_id, _ in entries]

    async def close(self) -> None:
        await self._running.aclose()
        with contextlib.suppress(redis.RedisError):
            async with self.client() as client:
                await client.delete(*self.keys.all())


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture
async def lane(redis_url: str) -> AsyncIterator[Lane]:
    lane = Lane(redis_url)
    yield lane
    await lane.close()


@pytest.fixture
def own_redis() -> Iterator[LocalRedis]:
    # With `everysec` a kill -9 may cost writes that were answered, while an older fsync is under way.
    with LocalRedis(config=["appendfsync always"]) as server:
        yield server


@pytest.fixture
async def own_lane(own_redis: LocalRedis) -> AsyncIterator[Lane]:
    lane = Lane(own_redis.url)
    yield lane
    await lane.close()
