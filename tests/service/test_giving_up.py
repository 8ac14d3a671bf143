"""Nothing is silently dropped: what can't be delivered is dead-lettered with a reason (G-7)."""

from __future__ import annotations

import pytest

from dispatcher.errors import CommandRefused
from tests.service.clients import Client
from tests.service.harness import Bench, lane
from tests.service.protocol_consumer import read_properties
from tests.spec.lane_bench import clause
from tests.waiting import eventually


async def _dead(bench: Bench, client: Client, count: int) -> list[tuple[bytes, str]]:
    """(body, reason) of everything in the dead queue, once there is that much."""
    queue = bench.names().dead
    await client.has_ready(queue, count)
    taken = await client.take(queue)
    return [(m.body, (read_properties(m.properties).headers or {})["x-dispatch-reason"]) for m in taken]


async def test_what_expires_while_it_is_held_is_dead_lettered_as_expired(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1", prefetch=1, hold=True)
    client.send("in", b"0", "g")
    await consumer.has(1)
    client.send("in", b"1", "g", expiration=b"150")
    client.send("in", b"2", "g")
    client.send("in", b"3", None, expiration=b"150")
    dead = await _dead(bench, client, 2)
    assert sorted(dead) == [(b"1", "expired"), (b"3", "expired")]
    consumer.release()
    await consumer.has(2)
    assert consumer.bodies() == [b"0", b"2"]
    await bench.acked()
    assert bench.counter("expired") == 2


async def test_what_expires_without_any_consumer_is_dead_lettered_too(bench: Bench) -> None:
    clause("G-7", "A message that can't be delivered is dead-lettered with a reason")
    await bench.run(orders=lane())
    client = await bench.client()
    client.send("in", b"1", "g", expiration=b"100")
    client.send("in", b"2", "g", expiration=b"0")
    assert sorted(await _dead(bench, client, 2)) == [(b"1", "expired"), (b"2", "expired")]
    await bench.acked()


async def test_in_flight_only_the_consumer_may_end_an_expired_message(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    client.send("in", b"0", "g", expiration=b"100")
    client.send("in", b"1", "h", expiration=b"100")
    await consumer.has(2)
    last = consumer.of_group("g")[0]
    ticks = await bench.client()
    ticks.send("in", b"2", None, expiration=b"300")
    await consumer.has(3)
    consumer.settle([consumer.of_group("h")[0].seq, consumer.received[2].seq])
    consumer.fail(last.seq, "expired")
    assert await _dead(bench, client, 1) == [(b"0", "expired")]
    await bench.acked()


@pytest.mark.seed("R10", "R20")
async def test_a_failed_message_goes_to_the_dead_queue_and_its_group_goes_on(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1", prefetch=2, hold=True)
    for number in range(4):
        client.send("in", b"%d" % number, "g")
    first, second = await consumer.has(2)
    consumer.fail(first.seq, "no")
    consumer.settle([second.seq])
    await consumer.has(4)
    consumer.release()
    assert await _dead(bench, client, 1) == [(b"0", "no")]
    await bench.acked()
    assert bench.counter("failed") == 1


@pytest.mark.seed("R21")
async def test_of_a_batch_only_what_failed_is_given_up_and_nothing_is_handed_over_again(bench: Bench) -> None:
    """The third of a batch of four fails while the fourth is in hand, and then its consumer dies."""
    await bench.run(orders=lane(policy="sequenced"))
    client = await bench.client()
    for number in range(1, 7):
        client.send("in", b"%d" % number, "g")
    await client.confirmed()
    consumer = await bench.joined("c1", prefetch=4, hold=True)
    first, second, third, fourth = await consumer.has(4)
    consumer.settle([first.seq, second.seq])
    consumer.fail(third.seq, "no stock", attempts=3)
    assert await _dead(bench, client, 1) == [(b"3", "no stock")]
    assert list(consumer.in_hand) == [fourth.seq]
    await consumer.confirmed()
    await consumer.drop()
    heir = await bench.joined("c2")
    await bench.acked()
    assert heir.bodies() == [b"4", b"5", b"6"]
    assert [copy.attempt for copy in heir.received] == [2, 1, 1]


async def test_a_message_failed_twice_is_dead_lettered_once(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    client.send("in", b"0", "g")
    (copy,) = await consumer.has(1)
    consumer.fail(copy.seq, "no")
    consumer.fail(copy.seq, "no again")
    consumer.settle([copy.seq])
    await eventually(lambda: bench.counter("settles_ignored") == 2)
    assert await _dead(bench, client, 1) == [(b"0", "no")]
    await bench.acked()


async def test_what_was_to_be_dead_lettered_survives_a_crash(bench: Bench) -> None:
    clause("D-5", "A crash may store it twice, with the same origin")
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True, prefetch=200)
    for number in range(200):
        client.send("in", b"%d" % number, f"g{number}")
    await consumer.has(200)
    for seq in list(consumer.in_hand):
        consumer.fail(seq, "no")
    await consumer.confirmed()
    await bench.crash()
    await bench.run(orders=lane())
    await eventually(lambda: bench.status()["in_flight"] == 0)
    await bench.acked()
    dead = await client.take(bench.names().dead)
    # A copy may be stored twice by a crash; its origin tells whoever reads the queue.
    origin = {m.body: (read_properties(m.properties).headers or {})["x-dispatch-origin"] for m in dead}
    assert sorted(origin, key=int) == [b"%d" % number for number in range(200)]
    assert len({(m.body, origin[m.body]) for m in dead}) == 200


async def test_why_says_how_many_of_a_group_went_to_the_dead_queue(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    for group in ("g", "g", "gone"):
        client.send("in", b"x", group, expiration=b"0")
    client.send("in", b"x", "g")
    await _dead(bench, client, 3)
    dead = (await bench.ask("groups.why", group="g"))["dead_lettered"]
    assert dead["count"] == 2
    assert 0 < dead["since_ms"] < 600_000
    with pytest.raises(CommandRefused, match="; at least 1 message of it went to the dead queue in the last"):
        await bench.ask("groups.why", group="gone")
    with pytest.raises(CommandRefused, match=r"no owner$"):
        await bench.ask("groups.why", group="never")
    for wrong in ({}, {"group": 5}, {"group": "%zz"}):
        with pytest.raises(CommandRefused):
            await bench.ask("groups.why", **wrong)
