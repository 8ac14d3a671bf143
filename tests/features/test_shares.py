"""Deficit weighted round robin against the real broker (D rows)."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from itertools import groupby, pairwise

import pytest

from tests.amqp.samples import field
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
    copies = (await consumer.has(220 * rounds))[: 220 * rounds]
    counts = Counter(copy.properties.correlation_id for copy in copies)
    for queue, weight in weights.items():
        assert abs(counts[queue] / (220 * rounds) - weight / 220) <= 0.005 * weight / 220, (queue, counts)


@pytest.mark.seed("D6")
async def test_an_idle_queue_saves_nothing_up(bench: Bench) -> None:
    """It was served once and emptied, with 49 of its turn left, and idles while the other one does not."""
    await bench.run(orders=_queues(busy=50, idle=50))
    client = await bench.client()
    await _fill(client, "idle", 1)
    await eventually(lambda: bench.status()["held"] == 1)
    await _fill(client, "busy", 500)
    consumer = await bench.joined("c1", prefetch=10)
    await consumer.has(200)
    consumer.hold()
    await eventually(lambda: len(consumer.in_hand) == 10)
    seen = len(consumer.received)
    await _fill(client, "idle", 150)
    await eventually(lambda: bench.status()["inbound"][1]["held"] == 150)
    consumer.release()
    await consumer.has(seen + 200)
    after = [copy.properties.correlation_id for copy in consumer.received[seen : seen + 200]]
    turns = [(queue, len(list(turn))) for queue, turn in groupby(after)]
    first = next(index for index, (queue, _) in enumerate(turns) if queue == "idle")
    assert turns[first : first + 3] == [("idle", 50), ("busy", 50), ("idle", 50)], turns


async def test_a_group_with_a_huge_backlog_does_not_delay_the_others_of_its_queue(bench: Bench) -> None:
    """They are served in turn, a message each, although all of them came behind it."""
    await bench.run(orders=_queues(only=1))
    client = await bench.client()
    for number in range(400):
        client.send("only", b"%d" % number, "tenant with a backlog")
    for group in ("a", "b", "c"):
        for number in range(3):
            client.send("only", b"%d" % number, group)
    await client.confirmed()
    await eventually(lambda: bench.status()["held"] == 409)
    consumer = await bench.joined("c1", prefetch=1)
    await consumer.has(16)
    assert Counter(copy.group for copy in consumer.received[:16] if len(copy.group or b"") == 1) == {
        b"a": 3, b"b": 3, b"c": 3,
    }  # fmt: skip


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


@pytest.mark.seed("D8")
async def test_the_first_message_after_a_rest_is_handed_over_at_once(bench: Bench) -> None:
    await bench.run(orders=_queues(only=1))
    client = await bench.client()
    consumer = await bench.joined("c1")
    waits = []
    for number in range(15):
        await bench.acked("only")  # nothing is on its way any more
        sent_at = time.monotonic()
        client.send("only", b"%d" % number, "g")
        waits.append((await consumer.has(number + 1))[-1].at - sent_at)
    # Milliseconds, unless it waits for the next round of a timer: those are seconds apart.
    assert statistics.median(waits) < 0.5, waits


@pytest.mark.seed("D10")
@pytest.mark.parametrize("prefetch", [1, 10, 100])
async def test_shares_are_the_same_whatever_the_prefetch(bench: Bench, prefetch: int) -> None:
    """The article's buffer was the prefetch; here it is the look-ahead, and consumers have a prefetch."""
    await bench.run(orders=_queues(high=10, low=1))
    client = await bench.client()
    await _fill(client, "high", 300)
    await _fill(client, "low", 60)
    await eventually(lambda: bench.status()["held"] == 360)
    consumer = await bench.joined("c1", prefetch=prefetch)
    copies = (await consumer.has(220))[:220]
    counts = Counter(copy.properties.correlation_id for copy in copies)
    assert counts == {"high": 200, "low": 20}


@pytest.mark.seed("D13")
async def test_costs_far_above_every_quantum_cost_no_rounds(bench: Bench) -> None:
    """A milliard of rounds, one after the other, would take a quarter of an hour and more."""
    await bench.run(orders={**_queues(one=1, two=1), "cost": {"header": "x-cost"}})
    client = await bench.client()
    for number in range(10):
        for queue in ("one", "two"):
            dear = field("x-cost", "l", (10**9).to_bytes(8, "big"))
            client.send(queue, b"%d" % number, f"{queue}-{number}", dear, correlation_id=queue.encode())
    await eventually(lambda: bench.status()["held"] == 20)
    consumer = await bench.joined("c1", prefetch=20)
    queues = [copy.properties.correlation_id for copy in await consumer.has(20)]
    assert all(earlier != later for earlier, later in pairwise(queues)), queues
