"""How groups are spread over consumers, end to end."""

from __future__ import annotations

from collections import defaultdict

import pytest
from pamqp import commands

from tests.amqp.samples import field
from tests.service.clients import Client
from tests.service.harness import Bench, lane
from tests.service.protocol_consumer import Copy, ProtocolConsumer
from tests.waiting import eventually


async def _publish(client: Client, groups: int, rounds: int, queue: str = "in") -> None:
    for number in range(rounds):
        for group in range(groups):
            client.send(queue, b"%d" % number, f"g{group}")
    await client.confirmed()


def _owners(*consumers: ProtocolConsumer) -> dict[bytes, set[str]]:
    owners: dict[bytes, set[str]] = defaultdict(set)
    for consumer in consumers:
        for copy in consumer.received:
            assert copy.group is not None
            owners[copy.group].add(consumer.id)
    return owners


def _in_order(copies: list[Copy]) -> bool:
    numbers = [int(copy.body) for copy in copies]
    return numbers == sorted(numbers)


@pytest.mark.seed("Q1", "Q6", "A2", "A9", "C1", "R1", "R2", "R23")
async def test_exclusive_pins_each_group_to_one_consumer_and_spreads_them_evenly(bench: Bench) -> None:
    await bench.run(orders=lane(policy="exclusive"))
    consumers = [await bench.joined(f"c{number}") for number in range(4)]
    client = await bench.client()
    await _publish(client, 40, 10)
    await eventually(lambda: sum(len(c.received) for c in consumers) == 400)
    owners = _owners(*consumers)
    assert all(len(of_group) == 1 for of_group in owners.values())
    assert [sum(of_group == {c.id} for of_group in owners.values()) for c in consumers] == [10] * 4
    for consumer in consumers:
        for group in {copy.group for copy in consumer.received}:
            copies = consumer.of_group(group or b"")
            assert _in_order(copies)
            assert [copy.group_seq for copy in copies] == list(range(1, 11))
            assert len({copy.epoch for copy in copies}) == 1
    headers = {name for consumer in consumers for copy in consumer.received for name in copy.headers}
    assert {name for name in headers if not name.startswith("x-dispatch-")} == {"x-group-id"}, "no first one"


@pytest.mark.seed("R26")
async def test_one_exchange_feeds_an_ordered_and_a_concurrent_lane(bench: Bench) -> None:
    await bench.run(ordered=lane("in"), spread=lane("second", policy="concurrent"))
    client = await bench.client()
    await client.link.call(
        client.channel, commands.Exchange.Declare(exchange="topic", exchange_type="fanout")
    )
    for queue in ("in", "second"):
        await client.link.call(client.channel, commands.Queue.Bind(queue=queue, exchange="topic"))
    pairs = [[await bench.joined(f"c{n}", name) for n in (1, 2)] for name in ("ordered", "spread")]
    for number in range(40):
        client.send("", b"%d" % number, "g", exchange="topic")
    await client.confirmed()
    for pair in pairs:
        await eventually(lambda pair=pair: sum(len(c.received) for c in pair) == 40)  # type: ignore[misc]
    ordered, spread = pairs
    assert sorted(len(consumer.received) for consumer in ordered) == [0, 40]
    assert all(_in_order(consumer.received) for consumer in ordered)
    assert all(consumer.received for consumer in spread), "one group, two consumers"


@pytest.mark.seed("Q8", "C2", "A12", "C10")
async def test_exclusive_keeps_the_owner_of_an_empty_group(bench: Bench) -> None:
    await bench.run(orders=lane(policy="exclusive"))
    owner = await bench.joined("c1")
    client = await bench.client()
    await _publish(client, 5, 1)
    await owner.has(5)
    await bench.acked()
    other = await bench.joined("c2")
    await _publish(client, 5, 1)
    await owner.has(10)
    assert not other.received


@pytest.mark.seed("Q12", "Q14", "Q15", "Q16", "R9")
async def test_sequenced_hands_out_one_batch_and_blocks_the_rest_until_all_of_it_is_settled(
    bench: Bench,
) -> None:
    await bench.run(orders=lane(policy="sequenced"))
    client = await bench.client()
    for number in range(12):
        client.send("in", b"%d" % number, "g")
    await client.confirmed()
    first = await bench.joined("c1", prefetch=5, hold=True)
    await first.has(5)
    second = await bench.joined("c2", prefetch=4)
    first.settle(list(first.in_hand)[:4])
    await first.confirmed()
    client.send("in", b"other", "h")
    await eventually(lambda: b"other" in first.bodies() + second.bodies())
    assert len(first.of_group("g")) + len(second.of_group("g")) == 5  # one of the batch is unsettled
    first.release()
    await eventually(lambda: len(first.of_group("g")) + len(second.of_group("g")) == 12)
    copies = sorted([*first.of_group("g"), *second.of_group("g")], key=lambda copy: copy.at)
    assert _in_order(copies)
    epochs = [copy.epoch for copy in copies]
    assert epochs == sorted(epochs)
    assert len(set(epochs)) >= 3  # 12 messages, batches of at most 5
    await bench.acked()
    assert bench.status()["groups"] == 0, "an empty group has no owner"


@pytest.mark.seed("Q16")
async def test_sequenced_with_top_up_lets_the_present_owner_go_on(bench: Bench) -> None:
    await bench.run(orders=lane(policy="sequenced", top_up=True))
    owner = await bench.joined("c1", prefetch=4, hold=True)
    client = await bench.client()
    await _publish(client, 1, 3)
    await owner.has(3)
    other = await bench.joined("c2", prefetch=50)
    owner.settle(list(owner.in_hand)[:2])
    await _publish(client, 1, 2)
    await owner.has(5)
    assert not other.received


@pytest.mark.seed("R12", "R23")
async def test_concurrent_spreads_one_group_over_all_consumers(bench: Bench) -> None:
    await bench.run(orders=lane(policy="concurrent"))
    consumers = [await bench.joined(f"c{number}", prefetch=10, hold=True) for number in range(3)]
    client = await bench.client()
    await _publish(client, 1, 30)
    await eventually(lambda: [len(c.received) for c in consumers] == [10, 10, 10])
    assert all("x-dispatch-group-seq" not in c.headers for c in consumers[0].received)


@pytest.mark.parametrize("policy", ["exclusive", "sequenced"])
async def test_ungrouped_messages_go_to_all_in_turn_by_default(bench: Bench, policy: str) -> None:
    await bench.run(orders=lane(policy=policy))
    consumers = [await bench.joined(f"c{number}", hold=True) for number in range(2)]
    client = await bench.client()
    for number in range(10):
        client.send("in", b"%d" % number)
    client.send("in", b"10", "")
    client.send("in", b"11", "")
    await eventually(lambda: [len(c.received) for c in consumers] == [6, 6])
    assert all(copy.group is None and copy.group_seq == 0 for c in consumers for copy in c.received)


@pytest.mark.seed("R18")
async def test_ungrouped_messages_can_be_rejected(bench: Bench) -> None:
    await bench.run(orders=lane(ungrouped="reject"))
    consumer = await bench.joined("c1")
    client = await bench.client()
    client.send("in", b"without")
    client.send("in", b"with", "g")
    await consumer.has(1)
    await client.has_ready(bench.names().dead, 1)
    dead = (await client.take(bench.names().dead))[0]
    assert dead.body == b"without"
    assert b"ungrouped" in dead.properties
    assert consumer.bodies() == [b"with"]
    await bench.acked()


@pytest.mark.seed("A6")
async def test_ungrouped_messages_can_share_a_group(bench: Bench) -> None:
    await bench.run(orders=lane(ungrouped="group:rest"))
    consumers = [await bench.joined(f"c{number}") for number in range(2)]
    client = await bench.client()
    for number in range(10):
        client.send("in", b"%d" % number)
    await eventually(lambda: sum(len(c.received) for c in consumers) == 10)
    owner = next(c for c in consumers if c.received)
    assert len(owner.of_group("rest")) == 10
    assert _in_order(owner.received)


@pytest.mark.seed("R6")
async def test_a_group_over_two_inbound_queues_keeps_one_owner_and_the_order_of_each_queue(
    bench: Bench,
) -> None:
    await bench.run(orders=lane("high", "low"))
    consumers = [await bench.joined(f"c{number}") for number in range(3)]
    client = await bench.client()
    for number in range(30):
        for group in range(6):
            client.send("high", b"%d" % number, f"g{group}", correlation_id=b"high")
            client.send("low", b"%d" % number, f"g{group}", correlation_id=b"low")
    await eventually(lambda: sum(len(c.received) for c in consumers) == 360)
    assert all(len(of_group) == 1 for of_group in _owners(*consumers).values())
    for consumer in consumers:
        for group in {copy.group for copy in consumer.received}:
            copies = consumer.of_group(group or b"")
            assert [copy.group_seq for copy in copies] == list(range(1, 61))
            for queue in ("high", "low"):
                assert _in_order([c for c in copies if c.properties.correlation_id == queue])


@pytest.mark.seed("A7", "C3")
async def test_a_negative_sequence_closes_the_group_when_it_is_settled(bench: Bench) -> None:
    await bench.run(orders=lane())
    first = await bench.joined("c1", hold=True)
    client = await bench.client()
    closing = field("x-group-seq", "l", (-1).to_bytes(8, signed=True))
    client.send("in", b"0", "g")
    client.send("in", b"1", "g", closing)
    client.send("in", b"2", "g")
    await first.has(2)
    second = await bench.joined("c2")
    for number in range(5):
        client.send("in", b"ballast", f"b{number}")  # so that the first one owns more groups
    await eventually(lambda: len(first.received) + len(second.received) == 7)
    assert b"2" not in first.bodies("g") + second.bodies("g")
    epoch = first.of_group("g")[0].epoch
    first.release()
    await eventually(lambda: b"2" in first.bodies("g") + second.bodies("g"))
    after = next(c for c in [*first.received, *second.received] if c.body == b"2")
    assert after.epoch > epoch
    assert after.group_seq == 1


@pytest.mark.seed("A9", "A10", "C7")
async def test_the_first_message_for_a_consumer_carries_the_first_header(bench: Bench) -> None:
    await bench.run(orders=lane(first_header="x-first"))
    client = await bench.client()
    await _publish(client, 3, 4)
    first = await bench.joined("c1", hold=True)
    await first.has(12)
    for group in range(3):
        marks = [copy.headers.get("x-first") for copy in first.of_group(f"g{group}")]
        assert marks == [True, None, None, None]
    await first.drop()
    heir = await bench.joined("c2")
    await heir.has(12)
    for group in range(3):
        marks = [copy.headers.get("x-first") for copy in heir.of_group(f"g{group}")]
        assert marks == [True, None, None, None]
    await bench.acked()
    target = await bench.joined("c3")
    await bench.ask("rebalance", group="g1", to="c3")
    await _publish(client, 3, 2)
    await target.has(2)
    await heir.has(16)
    assert [copy.headers.get("x-first") for copy in target.received] == [True, None]
    assert not any("x-first" in copy.headers for copy in heir.received[12:]), "it was theirs before"
    await bench.acked()
    await bench.ask("groups.close", group="g1")
    client.send("in", b"closed before", "g1")
    await eventually(lambda: len(heir.received) + len(target.received) == 19)
    (anew,) = heir.received[16:] + target.received[2:]
    assert anew.headers.get("x-first") is True, "whoever has it now, it is assigned anew"
