"""Fair shares of inbound queues, and what is held in memory at most."""

from __future__ import annotations

import pytest
from pamqp import commands

from dispatcher.errors import ChannelRefused
from tests.service.clients import Client
from tests.service.harness import Bench, lane
from tests.waiting import eventually

KIB = 1024


def _weighted(**keys: object) -> dict[str, object]:
    queues = [
        {"queue": "high", "weight": 3, "declare": True},
        {"queue": "low", "weight": 1, "declare": True},
    ]
    return {**lane(**keys), "inbound": queues}


async def _backlog(client: Client, count: int) -> None:
    for number in range(count):
        for queue in ("high", "low"):
            client.send(queue, b"x", f"{queue}{number % 40}", correlation_id=queue.encode())
    await client.confirmed()


@pytest.mark.seed("D1", "D3")
async def test_backlogged_queues_share_by_weight(bench: Bench) -> None:
    await bench.run(orders=_weighted())
    client = await bench.client()
    await _backlog(client, 600)
    await eventually(lambda: bench.status()["held"] == 1200)
    consumer = await bench.joined("c1", prefetch=20)
    await consumer.has(700)
    share = sum(c.properties.correlation_id == "high" for c in consumer.received[:700]) / 700
    assert 0.74 <= share <= 0.76


@pytest.mark.seed("Q19")
async def test_a_queue_whose_groups_are_all_blocked_does_not_hold_up_the_other(bench: Bench) -> None:
    await bench.run(orders=_weighted(policy="sequenced"))
    client = await bench.client()
    holder = await bench.joined("c1", prefetch=1, hold=True)
    for _ in range(50):
        client.send("high", b"x", "stuck")
    await holder.has(1)
    other = await bench.joined("c2")
    for number in range(50):
        client.send("low", b"x", f"low{number}")
    await other.has(50)
    assert len(holder.received) == 1


@pytest.mark.seed("D9")
async def test_no_more_than_the_look_ahead_is_held(bench: Bench) -> None:
    await bench.run(orders=lane(look_ahead=30))
    client = await bench.client()
    for number in range(100):
        client.send("in", b"%d" % number, "g")
    await client.confirmed()
    await eventually(lambda: bench.status()["held"] == 30)
    assert await client.ready("in") == 70
    row = (await bench.ask("status"))["inbound"][0]
    assert row["full"]
    assert "30 messages of group g" in row["full_of"]
    consumer = await bench.joined("c1", prefetch=100)
    await consumer.has(100)
    assert consumer.bodies() == [b"%d" % number for number in range(100)]
    await bench.acked()


async def test_what_stands_in_front_takes_nothing_but_its_own_room(bench: Bench) -> None:
    """More are stuck than may be walked over lightly, and the rest of the look-ahead is used up again and
    again: acks that wait for those in front would let RabbitMQ send 40 messages every two seconds."""
    await bench.run(orders=lane(look_ahead=100))
    client = await bench.client()
    stuck = await bench.joined("stuck", prefetch=60, hold=True)
    for number in range(60):
        client.send("in", b"x", f"stuck{number}")
    await stuck.has(60)
    quick = await bench.joined("quick", prefetch=20)
    for number in range(800):
        client.send("in", b"%d" % number, f"quick{number % 20}")
    await quick.has(800)
    stuck.release()
    await bench.acked()


@pytest.mark.seed("D9")
async def test_over_the_byte_budget_nothing_more_is_fetched_until_half_is_free(bench: Bench) -> None:
    await bench.run(orders=lane(look_ahead_bytes="256KiB"))
    client = await bench.client()
    consumer = await bench.joined("c1", prefetch=2, hold=True)
    for number in range(10):
        client.send("in", b"%02d" % number + bytes(64 * KIB), f"g{number % 3}")
    await client.confirmed()
    await eventually(lambda: bench.status()["inbound"][0]["full"])
    session = bench.runners["orders"]._session
    assert session is not None
    await eventually(lambda: session._feeds[0]._window == 1, what="fetching to stop")
    rival = await bench.client()
    for number in range(10, 60):
        client.send("in", b"%02d" % number + bytes(64 * KIB), f"g{number % 3}")
    await client.confirmed()
    assert await client.ready("in") >= 49, "one more at most"
    with pytest.raises(ChannelRefused, match="ACCESS_REFUSED"):
        # A successor that gets in before the unacked ones are back would get newer ones first.
        await rival.link.call(rival.channel, commands.Basic.Consume(queue="in"))
    consumer.release()
    await consumer.has(60)
    for group in range(3):
        numbers = [int(copy.body[:2]) for copy in consumer.of_group(f"g{group}")]
        assert numbers == sorted(numbers), "a replaced consumer must not reorder its queue"
    await bench.acked()


async def test_a_single_message_larger_than_the_budget_is_still_delivered(bench: Bench) -> None:
    await bench.run(orders=lane(look_ahead_bytes="1KiB"))
    client = await bench.client()
    consumer = await bench.joined("c1")
    for number in range(5):
        client.send("in", b"%d" % number + bytes(8 * KIB), "g")
    await consumer.has(5)
    assert [copy.body[:1] for copy in consumer.received] == [b"%d" % number for number in range(5)]
    await bench.acked()


async def test_a_full_look_ahead_is_explained(bench: Bench) -> None:
    await bench.run(orders=lane(look_ahead=10))
    client = await bench.client()
    await bench.joined("c1", prefetch=2, hold=True)
    for _ in range(20):
        client.send("in", b"x", "busy")
    await eventually(lambda: bench.status()["inbound"][0]["full"])
    why = await bench.ask("groups.why", group="busy")
    assert (why["reason"], why["facts"]["in_flight"]) == ("consumer_full", 2)
    assert why["behind"] == 8
    assert why["blocking"]["consumer"] == "c1"
    assert any("look-ahead of in is full" in detail for detail in why["details"])


@pytest.mark.seed("D10")
@pytest.mark.parametrize("owner_dies", [True, False])
async def test_a_look_ahead_smaller_than_what_is_in_flight_blocks_nothing(
    bench: Bench, owner_dies: bool
) -> None:
    await bench.run(orders=lane(look_ahead=100))
    client = await bench.client()
    for number in range(100):
        client.send("in", b"%d" % number, f"g{number % 2}")
    owner = await bench.joined("c1", prefetch=60, hold=True)
    await owner.has(60)
    await bench.crash()
    if owner_dies:
        await owner.drop()
    await bench.run(orders=lane(look_ahead=10))
    heir = await bench.joined("c2") if owner_dies else owner
    heir.release()
    await heir.has(100)
    await bench.acked()
    for group in range(2):
        assert heir.bodies(f"g{group}") == [b"%d" % number for number in range(group, 100, 2)]
