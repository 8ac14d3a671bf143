"""Joining, leaving, dying and coming back."""

from __future__ import annotations

import uuid

import pytest

from tests.service.clients import Client
from tests.service.harness import Bench, lane
from tests.spec.lane_bench import clause
from tests.waiting import eventually


async def _publish(client: Client, group: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        client.send("in", b"%d" % number, group)
    await client.confirmed()


def _numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def test_a_consumer_is_welcomed_and_told_the_heartbeat(bench: Bench) -> None:
    await bench.run(orders=lane())
    consumer = await bench.joined("c1")
    assert consumer.heard("welcome")[0].body["heartbeat"] == 1_000


async def test_a_repeated_join_is_answered_again_and_changes_nothing(bench: Bench) -> None:
    await bench.run(orders=lane())
    consumer = await bench.joined("c1")
    consumer.send_join()
    await eventually(lambda: len(consumer.heard("welcome")) == 2)
    assert bench.counter("joins") == 1
    assert bench.counter("rejoins") == 0


async def test_an_id_with_a_live_incarnation_waits_until_that_is_gone(bench: Bench) -> None:
    await bench.run(orders=lane())
    first = await bench.joined("c1")
    second = await bench.consumer("c1").join(expect="wait")
    assert not second.heard("welcome")
    await first.drop()

    def asked_again() -> bool:
        second.send_join()
        return bool(second.heard("welcome"))

    await eventually(asked_again, what="the second one's turn")


async def test_a_dead_incarnation_that_asks_again_is_told_that_it_was_taken(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    await _publish(client, "g", 0, 3)
    first = await bench.joined("c1", hold=True)
    await first.has(3)
    await first.drop()
    await eventually(lambda: bench.counter("consumers_taken") == 1)
    await first.rejoin(expect="taken")
    assert not first.heard("welcome")[1:]


async def test_an_incarnation_unknown_to_the_dispatcher_that_was_welcomed_before_is_taken(
    bench: Bench,
) -> None:
    await bench.run(orders=lane())
    stranger = bench.consumer("c1")
    stranger.n = 3
    await stranger.join(expect="taken")


async def test_a_heartbeat_of_a_stranger_is_answered_with_taken(bench: Bench) -> None:
    await bench.run(orders=lane())
    stranger = bench.consumer("c1")
    await stranger.connect()
    for _ in range(2):
        stranger.send_heartbeat()
    await eventually(lambda: stranger.heard("taken"))


@pytest.mark.seed("R8")
async def test_prefetch_bounds_what_is_unsettled(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    for number in range(100):
        client.send("in", b"%d" % number, f"g{number % 10}")
    await client.confirmed()
    consumer = await bench.joined("c1", prefetch=7, hold=True)
    await consumer.has(7)
    consumer.settle(list(consumer.in_hand)[:3])
    await consumer.has(10)
    consumer.release()
    await consumer.has(100)
    assert consumer.most_in_hand <= 7
    await bench.acked()


@pytest.mark.seed("C2")
async def test_one_who_leaves_gets_nothing_more_and_settles_what_it_holds(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    leaving = await bench.joined("c1", hold=True, prefetch=2)
    await _publish(client, "g", 0, 5)
    await leaving.has(2)
    await leaving.leave()
    other = await bench.joined("c2")
    await _publish(client, "h", 0, 1)
    await other.has(1)
    assert other.bodies("g") == []  # the group waits for what the leaving one holds
    leaving.release()
    await other.has(4)
    assert leaving.bodies() == _numbers(0, 2)
    assert other.bodies("g") == _numbers(2, 3)
    assert [copy.attempt for copy in other.received] == [1] * 4
    await eventually(lambda: bench.counter("consumers_taken") == 1)


async def test_one_who_rejoins_keeps_its_groups_and_gets_only_what_it_misses(bench: Bench) -> None:
    await bench.run(orders=lane(reconnect_grace="10s"))
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True, prefetch=6)
    await _publish(client, "g", 0, 4)
    first = list(await consumer.has(4))
    await consumer.drop()
    await eventually(lambda: bench.counter("consumers_lost") == 1)
    missed = [first[1].seq, first[3].seq]
    for seq in missed:
        del consumer.in_hand[seq]
    consumer.received.clear()
    await consumer.rejoin()
    await consumer.has(2)
    assert [(copy.seq, copy.epoch, copy.attempt) for copy in consumer.received] == [
        (copy.seq, copy.epoch, 1) for copy in first if copy.seq in missed
    ]
    consumer.release()
    await _publish(client, "g", 4, 2)
    await consumer.has(4)
    assert [copy.group_seq for copy in consumer.received[2:]] == [5, 6]
    assert not consumer.repeated
    assert bench.counter("consumers_taken") == 0


async def test_a_join_with_a_lower_number_changes_nothing(bench: Bench) -> None:
    await bench.run(orders=lane(reconnect_grace="10s"))
    client = await bench.client()
    consumer = await bench.joined("c1")
    await consumer.rejoin()
    consumer.send_join(n=1, queue="amq.gen-nowhere")
    await consumer.confirmed()
    await _publish(client, "g", 0, 3)
    await consumer.has(3)


@pytest.mark.seed("Q9", "A3", "R15", "R16")
async def test_a_dead_consumers_messages_reach_the_next_owner_in_order(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    dying = await bench.joined("c1", prefetch=40)
    heir = await bench.joined("c2", prefetch=400)
    for number in range(400):
        client.send("in", b"%d" % number, f"g{number % 20}", message_id=b"id %d" % number)
    await client.confirmed()
    await eventually(lambda: len(dying.received) >= 100)
    dying.hold()
    for number in range(400, 800):
        client.send("in", b"%d" % number, f"g{number % 20}", message_id=b"id %d" % number)
    await client.confirmed()
    await eventually(lambda: len(dying.in_hand) == 40)
    lost = list(dying.in_hand.values())
    await dying.drop()
    await eventually(lambda: len(dying.received) - len(lost) + len(heir.received) == 800)
    again = [copy for copy in heir.received if copy.attempt == 2]
    assert sorted(copy.body for copy in again) == sorted(copy.body for copy in lost)
    assert {copy.properties.message_id for copy in again} == {copy.properties.message_id for copy in lost}
    for group in {copy.group for copy in lost}:
        assert group is not None
        done = [copy for copy in dying.of_group(group) if copy not in lost]
        numbers = [int(copy.body) for copy in [*done, *heir.of_group(group)]]
        assert numbers == sorted(numbers), group
    await bench.acked()
    for number in range(800, 820):
        client.send("in", b"%d" % number, f"g{number % 20}")
    await bench.acked()
    assert heir.bodies()[-20:] == _numbers(800, 20), "and what comes later"


@pytest.mark.seed("C8")
async def test_a_lost_connection_within_the_grace_moves_no_group(bench: Bench) -> None:
    await bench.run(orders=lane(reconnect_grace="30s", first_header="x-first"))
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    other = await bench.joined("c2")
    await _publish(client, "g", 0, 1)
    await eventually(lambda: len(consumer.received) + len(other.received) == 1)
    owner, idle = (consumer, other) if consumer.received else (other, consumer)
    await owner.drop()
    await eventually(lambda: bench.counter("consumers_lost") == 1)
    await _publish(client, "g", 1, 1)
    await owner.rejoin()
    await owner.has(2)
    assert not idle.received
    assert [copy.headers.get("x-first") for copy in owner.received] == [True, None]
    assert bench.counter("consumers_taken") == 0


@pytest.mark.seed("C8")
async def test_a_new_incarnation_of_a_consumer_hears_again_that_a_group_is_new(bench: Bench) -> None:
    """Its memory is gone, although its name owns what it owned."""
    await bench.run(orders=lane(first_header="x-first"))
    client = await bench.client()
    for group in ("g", "h"):
        await _publish(client, group, 0, 2)
    first = await bench.joined("c1", hold=True)
    await first.has(4)
    first.settle([copy.seq for copy in first.of_group("g")])
    await first.confirmed()
    await first.drop()
    second = await bench.joined("c1")
    await _publish(client, "g", 2, 2)
    await second.has(4)
    assert second.bodies("g") == _numbers(2, 2)
    for group in ("g", "h"):
        assert [copy.headers.get("x-first") for copy in second.of_group(group)] == [True, None]


async def test_a_frozen_consumer_keeps_what_it_has_and_gets_no_new_groups(bench: Bench) -> None:
    clause("G-6", "Slowness alone moves no group")
    await bench.run(orders=lane(heartbeat="100ms"))
    client = await bench.client()
    frozen = await bench.joined("c1")
    await _publish(client, "g", 0, 1)
    await frozen.has(1)
    other = await bench.joined("c2")
    frozen.freeze()
    await eventually(lambda: bench.counter("consumers_frozen") == 1)
    assert bench.status()["consumers_frozen"] == 1
    for number in range(10):
        client.send("in", b"new", f"n{number}")
    await _publish(client, "g", 1, 1)
    await other.has(10)
    await frozen.has(2)
    assert frozen.bodies() == _numbers(0, 2)
    frozen.thaw()

    async def alive_again() -> bool:
        rows = (await bench.ask("consumers.list"))["consumers"]
        return {row["consumer"]: row["state"] for row in rows} == {"c1": "live", "c2": "live"}

    await eventually(alive_again)
    assert bench.status()["consumers_frozen"] == 0


async def test_settles_of_a_taken_incarnation_count_for_nothing(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    await _publish(client, "g", 0, 2)
    dead = await bench.joined("c1", hold=True)
    await dead.has(2)
    await dead.drop()
    await eventually(lambda: bench.counter("consumers_taken") == 1)
    heir = await bench.joined("c2", hold=True)
    await heir.has(2)
    await dead.connect()
    dead.settle(list(dead.in_hand))
    await dead.confirmed()
    await eventually(lambda: bench.counter("settles_ignored") == 2)
    assert bench.status()["in_flight"] == 2
    heir.release()
    await bench.acked()


async def test_a_settle_before_the_death_still_counts(bench: Bench) -> None:
    """What the broker confirmed before the connection was lost is done for good."""
    await bench.run(orders=lane())
    client = await bench.client()
    await _publish(client, "g", 0, 50)
    dying = await bench.joined("c1", hold=True)
    await dying.has(50)
    dying.settle(sorted(dying.in_hand)[:30])
    await dying.confirmed()
    await dying.drop()
    heir = await bench.joined(f"c-{uuid.uuid4().hex[:6]}")
    await heir.has(20)
    await bench.acked()
    assert heir.bodies() == _numbers(30, 20)


async def test_a_copy_that_got_lost_is_sent_again_although_nothing_follows_it(bench: Bench) -> None:
    clause(
        "C-10", "A copy that got lost on its way to a consumer that is there is sent again with the same seq"
    )
    await bench.run(orders=lane(reconnect_grace="10s"))
    consumer = await bench.joined("c1", hold=True)
    client = await bench.client()
    client.send("in", b"1", "a")
    client.send("in", b"2", "b")
    _, lost = await consumer.has(2)
    del consumer.in_hand[lost.seq]  # as if it had never come
    await eventually(lambda: any(notice.type == "rejoin" for notice in consumer.notices))
    assert bench.counter("copies_missed") == 1
    await consumer.rejoin()
    copies = await consumer.has(3)
    assert (copies[2].seq, copies[2].body, copies[2].attempt) == (lost.seq, b"2", 1)
