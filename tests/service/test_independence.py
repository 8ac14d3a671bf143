"""A stuck or slow group delays no other: windows (W-1 to W-4), and consumers that take groups over (O-34)."""

from __future__ import annotations

import asyncio
from typing import Any

from dispatcher.client import GroupConsumer, Message
from tests.service.harness import LANE, Bench
from tests.waiting import eventually

ONE_QUEUE: dict[str, Any] = {"inbound": [{"queue": "in", "declare": True}]}  # and nothing else is said


class Workers:
    """Two consumers with prefetch 5, whose handlers hang at the messages of these groups."""

    def __init__(self, bench: Bench, *hanging: str) -> None:
        self._bench = bench
        self._hanging = {name.encode() for name in hanging}
        self.goes_on = asyncio.Event()
        self.handled: list[bytes | None] = []  # groups, one for each message

    async def run(self) -> None:
        url, prefix = self._bench.rabbitmq.url, self._bench.vhost.redis_prefix
        consumers = [GroupConsumer(url, LANE, name, 5, prefix=prefix) for name in ("c1", "c2")]
        await asyncio.gather(*(one.run(self._handle, stop_on_signals=False) for one in consumers))

    async def _handle(self, message: Message) -> None:
        if message.group in self._hanging:
            await self.goes_on.wait()
        self.handled.append(message.group)

    def count(self, *groups: str) -> int:
        wanted = {name.encode() for name in groups}
        return sum(group in wanted for group in self.handled)


async def test_one_stuck_group_delays_none_of_its_consumers_other_groups(bench: Bench) -> None:
    await bench.run(orders=ONE_QUEUE)
    workers = Workers(bench, "order-3")
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(workers.run())
        await eventually(lambda: bench.status()["consumers"] == 2)
        client = await bench.client()
        names = [f"order-{n}" for n in range(12)]
        for _ in range(10):
            for name in names:
                client.send("in", b"x", name)
        await eventually(lambda: workers.count(*names) == 110)
        assert bench.counter("groups_stolen") == 0, "each owner had room for all of its other groups"
        why = await bench.ask("groups.why", group="order-3")
        assert why["reason"] == "group_window_full"
        assert why["facts"]["in_flight"] <= 2
        workers.goes_on.set()
        await eventually(lambda: workers.count("order-3") == 10)
        working.cancel()


async def test_groups_of_a_consumer_that_is_stuck_as_a_whole_go_to_the_other(bench: Bench) -> None:
    """More groups hang than their owner has room for. What has nothing out there moves, and only that."""
    await bench.run(orders=ONE_QUEUE)
    stuck = await bench.joined("stuck", prefetch=4, hold=True)
    client = await bench.client()
    names = [f"order-{n}" for n in range(8)]
    for name in names:
        client.send("in", b"x", name)
    await stuck.has(4)
    stuck.settle([copy.seq for copy in stuck.received[:4]])
    await stuck.has(8)
    for name in names[:4]:
        client.send("in", b"x", name)
    await client.confirmed()
    await eventually(lambda: bench.status()["held"] == 4)
    other = await bench.joined("other", prefetch=50)
    await other.has(4)
    assert {copy.group for copy in other.received} == {name.encode() for name in names[:4]}
    assert len(stuck.received) == 8
    assert bench.counter("groups_stolen") == 4
    row = await bench.ask("groups.why", group="order-0")
    assert any("taken over" in detail for detail in row["details"])
