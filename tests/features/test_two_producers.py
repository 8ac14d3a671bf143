"""Two producers of one group (R4): the order of each is kept, none between them, and one owner has both."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.client import GroupProducer
from tests.service.harness import Bench, lane
from tests.waiting import eventually

COUNT = 100


@pytest.mark.seed("R4")
async def test_each_producers_own_order_is_kept(bench: Bench) -> None:
    await bench.run(orders=lane())
    consumers = [await bench.joined(f"c{number}") for number in range(2)]

    async def produce(name: str) -> None:
        async with GroupProducer(bench.rabbitmq.url, "in") as producer:
            for number in range(COUNT):
                producer.submit(b"%s %d" % (name.encode(), number), "g")
            await producer.flush()

    await asyncio.gather(produce("one"), produce("two"))
    await eventually(lambda: sum(len(c.received) for c in consumers) == 2 * COUNT)
    (owner,) = [consumer for consumer in consumers if consumer.received]
    for name in (b"one", b"two"):
        mine = [body for body in owner.bodies("g") if body.startswith(name)]
        assert mine == [b"%s %d" % (name, number) for number in range(COUNT)]
