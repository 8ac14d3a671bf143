"""What a lane waits for before it hands anything out, end to end (docs/semantics.md, O-18)."""

from __future__ import annotations

import time

import pytest

from tests.service.harness import Bench, lane
from tests.waiting import eventually


async def _fill(bench: Bench, groups: str = "abc") -> None:
    client = await bench.client()
    for number in range(10):
        for group in groups:
            client.send("in", b"%d" % number, group)
    await client.confirmed()
    await eventually(lambda: bench.status()["held"] == 10 * len(groups))


@pytest.mark.seed("C10", "C11", "C13", "C16")
async def test_a_lane_waits_for_its_consumers_and_spreads_the_groups(bench: Bench) -> None:
    await bench.run(orders=lane(start={"consumers": 3, "wait": "1m"}))
    await _fill(bench)
    consumers = [await bench.joined(f"c{number}") for number in range(2)]
    why = await bench.ask("groups.why", group="a")
    assert (why["reason"], why["facts"]["consumers"]) == ("lane_not_begun", 2)
    assert not any(consumer.received for consumer in consumers)
    consumers.append(await bench.joined("c3"))
    for consumer in consumers:
        await consumer.has(10)
        assert len({copy.group for copy in consumer.received}) == 1


@pytest.mark.seed("C12", "C13", "C14", "C15")
@pytest.mark.parametrize(
    ("start", "wait_s", "times"),
    [({"wait": "300ms"}, 0.3, 2), ({"consumers": 3}, 1.0, 1), ({"consumers": 3, "wait": "1200ms"}, 1.2, 1)],
    ids=["time", "number", "both"],
)
async def test_a_lane_waits_for_some_time_whenever_its_first_consumer_comes(
    bench: Bench, start: dict[str, object], wait_s: float, times: int
) -> None:
    await bench.run(orders=lane(start=start))
    for name in ("c1", "c2")[:times]:
        await _fill(bench)
        before = time.monotonic()
        consumer = await bench.joined(name)
        await consumer.has(30)
        assert consumer.received[0].at - before >= wait_s
        await bench.acked()
        await consumer.drop()
        await eventually(lambda: not bench.status()["consumers"])
