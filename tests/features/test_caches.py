"""A consumer that keeps what it knows of a group, and drops it when the group is new to it (C9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from dispatcher.client import GroupConsumer
from tests.service.harness import LANE, Bench, lane
from tests.waiting import eventually

ACCOUNT = b"account"


class Teller:
    """Adds amounts to balances. It reads a balance when it has none in its cache, and writes every one."""

    def __init__(self, balances: dict[bytes, int], *, drops_first: bool) -> None:
        self._balances = balances
        self._cache: dict[bytes, int] = {}
        self._drops_first = drops_first
        self.done = 0

    @asynccontextmanager
    async def at_work(self, bench: Bench, name: str) -> AsyncIterator[None]:
        """As a consumer of this name."""
        prefix = bench.names().prefix
        async with GroupConsumer(bench.rabbitmq.url, LANE, name, prefix=prefix) as consumer:
            await consumer.joined()
            working = asyncio.create_task(self._work(consumer))
            try:
                yield
            finally:
                working.cancel()

    async def _work(self, consumer: GroupConsumer) -> None:
        async for message in consumer:
            group = message.group
            assert group is not None
            if message.first_for_consumer and self._drops_first:
                self._cache.pop(group, None)
            before = self._cache.get(group, self._balances.get(group, 0))
            self._cache[group] = self._balances[group] = before + int(message.body)
            self.done += 1
            await message.ack()


@pytest.mark.seed("C9")
@pytest.mark.parametrize(("drops_first", "balance"), [(True, 1113), (False, 1013)], ids=["drops", "keeps"])
async def test_a_cache_is_right_when_the_first_message_drops_it(
    bench: Bench, drops_first: bool, balance: int
) -> None:
    """Through moves there, back and there again, and a fail-over. A teller that ignores the flag adds to what
    it remembers, and so forgets what the other one has done."""
    await bench.run(orders=lane())
    client = await bench.client()
    balances: dict[bytes, int] = {}
    tellers = {name: Teller(balances, drops_first=drops_first) for name in ("a", "b")}

    async def pay(name: str, *amounts: int) -> None:
        done = tellers[name].done + len(amounts)
        for amount in amounts:
            client.send("in", b"%d" % amount, ACCOUNT)
        await eventually(lambda: tellers[name].done == done)
        await bench.acked()

    async def b_is_live() -> bool:
        """A new leader expects a consumer until it has heard of it."""
        rows = (await bench.ask("consumers.list"))["consumers"]
        return any(row["consumer"] == "b" and row["state"] == "live" for row in rows)

    async with AsyncExitStack() as stack:
        for name, teller in tellers.items():
            await stack.enter_async_context(teller.at_work(bench, name))
            if name == "a":
                await pay("a", 1, 2)
        await bench.ask("rebalance", group="account", to="b")
        await pay("b", 10)
        await bench.ask("rebalance", group="account", to="a")
        await pay("a", 100)
        await bench.crash()
        await bench.run(orders=lane())
        await eventually(b_is_live)
        await bench.ask("rebalance", group="account", to="b")
        await pay("b", 1000)
    assert balances == {ACCOUNT: balance}
