"""A group with most of the traffic is seen, by people and by alerts (R22)."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.http.metrics import registry
from tests.service.harness import LANE, Bench, lane
from tests.service.operating import operator
from tests.waiting import eventually

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def _metrics(bench: Bench) -> dict[str, float]:
    """What Prometheus would read of the lane."""
    text = generate_latest(registry([bench.runners[LANE]])).decode()
    samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
    return {s.name: s.value for s in samples if s.labels == {"lane": LANE}}


@pytest.mark.seed("R22")
async def test_the_busiest_group_is_named_and_measured(bench: Bench) -> None:
    await bench.run(orders=lane())
    assert _metrics(bench)["dispatcher_busiest_group_share"] == 0
    client = await bench.client()
    owner = await bench.joined("c1", prefetch=10, hold=True)
    for number in range(60):
        client.send("in", b"x", "hot")
        if number % 2:
            client.send("in", b"x", f"other {number}")
    client.send("in", b"x", None)
    await owner.has(10)
    other = await bench.joined("c2", prefetch=50)
    await other.has(1)
    await eventually(lambda: bench.status()["inbound"][0]["held"] + bench.status()["in_flight"] >= 60)
    named = (await bench.ask("status"))["busiest_group"]
    assert (named["group"], named["owner"], named["depth"]) == ("hot", "c1", 60)
    assert named["share"] == pytest.approx(60 / 91)
    assert "busiest group: hot, 65.9% of the last minute, 60 messages, of consumer c1" in await operator(
        bench, "status", LANE
    )
    assert any(
        line.startswith("hot: 66% of the messages of the last minute")
        for line in (await bench.ask("groups.why", group="hot"))["details"]
    )
    told = _metrics(bench)
    assert told["dispatcher_busiest_group_share"] == pytest.approx(60 / 91)
    assert told["dispatcher_busiest_group_depth"] == 60


async def test_an_unfinished_batch_is_explained_and_measured(bench: Bench) -> None:
    """Its consumer settles less often than it has prefetch: it keeps the group."""
    await bench.run(orders=lane(policy="sequenced"))
    client = await bench.client()
    for number in range(6):
        client.send("in", b"%d" % number, "g")
    await client.confirmed()
    stuck = await bench.joined("c1", prefetch=4, hold=True)
    await stuck.has(4)
    stuck.settle(list(stuck.in_hand)[:3])
    await bench.joined("c2")
    await eventually(lambda: bench.status()["in_flight"] == 1)
    why = await bench.ask("groups.why", group="g")
    assert (why["reason"], why["facts"]["in_flight"]) == ("batch_out", 1)
    await eventually(lambda: _metrics(bench)["dispatcher_oldest_in_flight_seconds"] > 0.3)
    (row,) = [row for row in (await bench.ask("consumers.list"))["consumers"] if row["in_flight"]]
    assert (row["consumer"], row["oldest_in_flight_ms"] > 300) == ("c1", True)
    await bench.crash()
    await bench.run(orders=lane(policy="sequenced"))
    assert bench.status()["in_flight"] == 1
    await eventually(lambda: _metrics(bench)["dispatcher_oldest_in_flight_seconds"] > 0.3)
    stuck.release()
    await bench.acked()
    assert _metrics(bench)["dispatcher_oldest_in_flight_seconds"] == 0
