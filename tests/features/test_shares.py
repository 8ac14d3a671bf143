"""Deficit weighted round robin against the real broker (D rows)."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tests.service.clients import Client
from tests.service.harness import Bench, lane
from tests.waiting import eventually


def _queues(**weights: int) -> dict[str, object]:
    inbound = [{"queue": queue, "weight": weight, "declare": True} for queue, weight in weights.items()]
    return {**lane(), "inbound": inbound}


async def _fill(client: Client, queue: str, count: int, groups: int = 20) -> None:
    for number in range(count):
        client.send(queue, b"%d" % number, f"{queue}-{number % groups}", correlation_id=queue.encode())
    await client.confirmed()


@pytest.mark.seed("D3", "D4", "D12", "D7")
async def test_quanta_of_10_and_1_give_ten_to_one_in_the_same_sequence_again_and_again(bench: Bench) -> None:
    await bench.run(orders=_queues(high=10, low=1))
    client = await bench.client()
    await _fill(client, "high", 600)
    await _fill(client, "low", 100)
    await eventually(lambda: bench.status()["held"] == 700)
    consumer = await bench.joined("c1", prefetch=50)
    copies = (await consumer.has(550))[:550]
    queues = [copy.properties.correlation_id for copy in copies]
    lows = [index for index, queue in enumerate(queues) if queue == "low"]
    assert {later - earlier for earlier, later in pairwise(lows)} == {11}


@pytest.mark.seed("D11", "D2")
async def test_ten_queues_share_as_their_quanta(bench: Bench) -> None:
    weights = {f"q{number}": 4 * number for number in range(1, 11)}
    await bench.run(orders=_queues(**weights))
    client = await bench.client()
    rounds = 11
    for queue, weight in weights.items():
        await _fill(client, queue, weight * (rounds + 1))
    await eventually(lambda: bench.status()["held"] == 220 * (rounds + 1), 30)
    consumer = await bench.joined("c1", prefetch=50)
    copies = (await consumer.has(220 * rounds, timeout_s=30))[: 220 * rounds]
    counts = Counter(copy.properties.correlation_id for copy in copies)
    for queue, weight in weights.items():
        assert abs(counts[queue] / (220 * rounds) - weight / 220) <= 0.005 * weight / 220, (queue, counts)


@pytest.mark.seed("D6")
async def test_an_idle_queue_saves_nothing_up(bench: Bench) -> None:
    await bench.run(orders=_queues(busy=1, idle=1))
    client = await bench.client()
    await _fill(client, "busy", 400)
    consumer = await bench.joined("c1", prefetch=10)
    await consumer.has(200)
    consumer.hold()
    await eventually(lambda: len(consumer.in_hand) == 10)
    seen = len(consumer.received)
    await _fill(client, "idle", 100)
    await eventually(lambda: bench.status()["inbound"][1]["held"] == 100)
    consumer.release()
    await consumer.has(seen + 100)
    after = [copy.properties.correlation_id for copy in consumer.received[seen : seen + 100]]
    assert 45 <= after.count("idle") <= 55, after


@pytest.mark.seed("D14", "R8")
async def test_each_ack_pulls_the_next_message(bench: Bench) -> None:
    await bench.run(orders=_queues(only=1))
    client = await bench.client()
    consumer = await bench.joined("c1", prefetch=1, hold=True)
    await _fill(client, "only", 5, groups=1)
    for number in range(5):
        await consumer.has(number + 1)
        assert len(consumer.in_hand) == 1
        consumer.settle(list(consumer.in_hand))
    assert consumer.most_in_hand == 1
