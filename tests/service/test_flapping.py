"""Connections that break again and again bring no message into the dead queue that no application had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.client.copies import Copy
from tests.client.subjects import AsyncConsumer, BlockingConsumer, Consumer, Work
from tests.client.tcp_proxy import TcpProxy
from tests.service.harness import Bench, lane
from tests.waiting import eventually

GROUPS = 50
PER_GROUP = 12
CUTS = 12
#: Messages settled between two cuts: more than may have begun at a cut, fewer than are in hand.
SETTLED_PER_LIFE = 25
CONCURRENCY = 4

kinds = pytest.mark.parametrize("kind", [AsyncConsumer, BlockingConsumer], ids=lambda kind: kind.kind)


class Application:
    """Works on no more messages in a life of its consumer than it may."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.may_settle = 0
        self.seen: set[bytes] = set()

    def __contains__(self, body: bytes) -> bool:
        """Whether its handlers have to wait before they end."""
        return self.may_settle <= 0

    async def run(self) -> None:
        work = Work(self._ends)
        work.held = self  # type: ignore[assignment]
        await self.consumer.run(work, concurrency=CONCURRENCY)

    def _ends(self, message: Copy) -> None:
        self.seen.add(message.body)
        self.may_settle -= 1

    async def iterate(self) -> None:
        await self.consumer.open()
        while True:
            await eventually(lambda: self.may_settle > 0, what="the next life")
            message = await self.consumer.next()
            if message is None:
                return
            self.seen.add(message.body)
            self.may_settle -= await self.consumer.ack(message)


async def _reaches(bench: Bench, counter: str, count: int) -> None:
    await eventually(lambda: bench.counter(counter) >= count, what=f"{counter} to reach {count}")


@kinds
@pytest.mark.parametrize("work", [Application.run, Application.iterate], ids=["run", "iteration"])
async def test_a_flapping_consumer_makes_no_poison(
    bench: Bench, kind: type[Any], work: Callable[[Application], Any]
) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    bodies = set()
    for number in range(PER_GROUP):
        for group in range(GROUPS):
            body = b"%d of %d" % (number, group)
            client.send("in", body, f"g{group}")
            bodies.add(body)
    await client.confirmed()

    async with TcpProxy(bench.vhost.amqp_url) as proxy:
        consumer = kind(proxy.url, "c1", GROUPS, prefix=bench.vhost.redis_prefix)
        application = Application(consumer)
        task = asyncio.create_task(work(application))
        try:
            for cut in range(1, CUTS + 1):
                await _reaches(bench, "joins", cut)
                application.may_settle = SETTLED_PER_LIFE
                await _reaches(bench, "settled", bench.counter("settled") + SETTLED_PER_LIFE)
                proxy.refuses = True  # else it is back before it was missed
                proxy.cut()
                await _reaches(bench, "consumers_taken", cut)
                proxy.refuses = False
            application.may_settle = len(bodies)
            await bench.acked()
        finally:
            await consumer.close()
            await asyncio.wait([task])
            task.result()
    assert application.seen == bodies
    assert bench.counter("poisoned") == 0
    assert await client.ready(bench.names().dead) == 0
