"""Inbound queues of every kind, missing ones, ones that somebody else reads, and several lanes."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from pamqp import commands
from structlog.testing import capture_logs

from dispatcher.errors import ChannelRefused, ConfigurationError
from dispatcher.service.lane_runner import LaneRunner, RunnerState
from dispatcher.service.queue_kinds import HAS_PRIORITIES, unusable
from tests.service.harness import Bench, lane
from tests.waiting import eventually

IS_A_STREAM = unusable("stream", has_priorities=False)


def _existing(*queues: str) -> dict[str, object]:
    return {**lane(), "inbound": [{"queue": queue} for queue in queues]}


async def test_a_missing_inbound_queue_is_refused_by_its_name(bench: Bench) -> None:
    with pytest.raises(
        ConfigurationError, match=r"lanes\.orders\.inbound\[1\]\.queue: there is no queue 'b'"
    ):
        await bench.run(orders={"inbound": [{"queue": "a", "declare": True}, {"queue": "b"}]})


async def test_a_missing_inbound_queue_is_declared_when_asked_for(bench: Bench) -> None:
    await bench.run(orders=lane("fresh"))
    client = await bench.client()
    consumer = await bench.joined("c1")
    client.send("fresh", b"x", "g")
    await consumer.has(1)


async def test_an_inbound_queue_with_other_arguments_is_taken_as_it_is(bench: Bench) -> None:
    client = await bench.client()
    await client.declare("odd", x_max_length=1000, x_queue_mode="lazy")
    await bench.run(orders={"inbound": [{"queue": "odd", "declare": True}]})
    consumer = await bench.joined("c1")
    client.send("odd", b"x", "g")
    await consumer.has(1)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"x_queue_type": "stream"}, IS_A_STREAM),
        ({"x_queue_type": "stream", "x_max_length_bytes": 20_000_000}, IS_A_STREAM),
        ({"x_max_priority": 3}, HAS_PRIORITIES),
        ({"x_max_priority": 3, "x_max_length": 1_000, "x_queue_mode": "lazy"}, HAS_PRIORITIES),
        ({"x_max_priority": 3, "x_message_ttl": 80_000, "x_dead_letter_exchange": "other"}, HAS_PRIORITIES),
        ({"auto_delete": True, "x_max_priority": 3}, HAS_PRIORITIES),
    ],
)
async def test_a_lane_over_a_queue_without_order_is_not_led(
    bench: Bench, arguments: dict[str, object], problem: str
) -> None:
    """Other lanes go on, and the lane is led once the queue is another one."""
    client = await bench.client()
    await client.declare("in", **arguments)
    await bench.run(orders=_existing("in"), others=lane("other"), wait=False)
    await bench.leads("others")
    runner = bench.runners["orders"]
    text = f"lanes.orders.inbound[0].queue: 'in' {problem}"
    await eventually(lambda: runner.problem == text, what=text)
    assert runner.readiness() == (False, text)
    assert not runner.leaderships
    await client.delete("in")
    await client.declare("in", x_max_length=1_000, x_queue_mode="lazy", x_message_ttl=80_000)
    await bench.leads()


async def test_a_foreign_consumer_is_named(bench: Bench) -> None:
    client = await bench.client()
    await client.declare("in")
    await client.link.call(client.channel, commands.Basic.Consume(queue="in", consumer_tag="foreign"))
    await bench.run(orders=_existing("in"), wait=False)
    runner = bench.runners["orders"]
    await eventually(lambda: runner.problem is not None)
    assert runner.problem is not None
    assert "inbound queue 'in' has 1 consumer" in runner.problem
    assert runner.readiness() == (False, runner.problem)
    await client.link.call(client.channel, commands.Basic.Cancel(consumer_tag="foreign"))
    await bench.leads()


async def test_nobody_else_can_consume_a_classic_inbound_queue_meanwhile(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    with pytest.raises(ChannelRefused, match="403"):
        await client.link.call(client.channel, commands.Basic.Consume(queue="in"))


async def test_a_second_reader_of_a_quorum_inbound_queue_is_named(bench: Bench) -> None:
    """Its `exclusive` means nothing: the dispatcher sees that it is not alone with the next acks."""
    client, foreign = await bench.client(), await bench.client()
    await client.declare("in", x_queue_type="quorum")
    await bench.run(orders=_existing("in"))
    await bench.joined("c1")
    runner = bench.runners["orders"]
    await foreign.link.call(foreign.channel, commands.Basic.Qos(prefetch_count=1))
    await foreign.link.call(foreign.channel, commands.Basic.Consume(queue="in"))
    for number in range(10):
        client.send("in", b"%d" % number, "g")
    await eventually(lambda: not runner.readiness()[0], what="the second reader to be noticed")
    assert "inbound queue 'in' has 1 consumer(s) that are not this dispatcher" in runner.readiness()[1]
    await foreign.close()
    client.send("in", b"last", "g")
    await eventually(lambda: runner.readiness() == (True, "leading"), what="it to be alone again")


async def test_a_quorum_inbound_queue_is_served_and_recovered_in_order(bench: Bench) -> None:
    client = await bench.client()
    await client.declare("in", x_queue_type="quorum")
    await bench.run(orders=_existing("in"))
    for number in range(120):
        client.send("in", b"%d" % number, f"g{number % 3}")
    await client.confirmed()
    consumer = await bench.joined("c1", prefetch=60, hold=True)
    await consumer.has(60)
    consumer.settle(sorted(consumer.in_hand)[:20])
    await consumer.confirmed()
    await bench.crash()
    await bench.run(orders=_existing("in"))
    consumer.release()
    await consumer.has(120)
    await bench.acked()
    for group in range(3):
        assert consumer.bodies(f"g{group}") == [b"%d" % number for number in range(group, 120, 3)]
    assert {copy.attempt for copy in consumer.received} == {1}


async def test_an_inbound_queue_deleted_from_outside_is_missed_until_it_is_back(bench: Bench) -> None:
    client = await bench.client()
    await client.declare("in")
    await bench.run(orders=_existing("in"))
    consumer = await bench.joined("c1")
    await client.delete("in")
    runner = bench.runners["orders"]
    await eventually(lambda: "there is no queue 'in'" in (runner.problem or ""))
    await client.declare("in")
    await bench.leads()
    client.send("in", b"x", "g")
    await consumer.has(1)


async def test_an_inbound_queue_purged_while_messages_wait_loses_only_what_was_purged(bench: Bench) -> None:
    await bench.run(orders=lane(look_ahead=10))
    client = await bench.client()
    for number in range(30):
        client.send("in", b"%d" % number, "g")
    await client.confirmed()
    await eventually(lambda: bench.status()["held"] == 10)
    await client.purge("in")
    client.send("in", b"30", "g")
    consumer = await bench.joined("c1")
    await consumer.has(11)
    assert consumer.bodies() == [b"%d" % number for number in [*range(10), 30]]


@pytest.mark.seed("Q5", "A23")
async def test_several_lanes_live_side_by_side(bench: Bench) -> None:
    await bench.run(orders=lane("in.a"), payments=lane("in.b", policy="sequenced"))
    client = await bench.client()
    ours = await bench.joined("c1", "orders")
    theirs = await bench.joined("c1", "payments")
    for number in range(50):
        client.send("in.a", b"a%d" % number, f"g{number % 5}")
        client.send("in.b", b"b%d" % number, f"g{number % 5}")
    await ours.has(50)
    await theirs.has(50)
    assert all(body.startswith(b"a") for body in ours.bodies())
    assert all(body.startswith(b"b") for body in theirs.bodies())
    await bench.acked("in.a", "orders")
    await bench.acked("in.b", "payments")
    owned = bench.status("orders")["groups"], bench.status("payments")["groups"]
    assert owned == (5, 0), "exclusive keeps the owners of empty groups, sequenced does not"
    await bench.crash("orders")
    client.send("in.b", b"b50", "g0")
    await theirs.has(51)


@pytest.mark.seed("A24", "A26")
async def test_a_second_dispatcher_of_a_lane_stands_by_and_takes_over(bench: Bench) -> None:
    await bench.run(orders=lane())
    settings = bench.settings(orders=lane())
    standby = LaneRunner(settings, settings.lanes["orders"])
    task = asyncio.create_task(standby.run())
    try:
        await eventually(lambda: standby.state is RunnerState.STANDBY)
        assert standby.readiness() == (True, "standing by")
        client = await bench.client()
        consumer = await bench.joined("c1")
        client.send("in", b"0", "g")
        await consumer.has(1)
        await bench.crash()
        await eventually(lambda: standby.state is RunnerState.LEADING)
        client.send("in", b"1", "g")
        await consumer.has(2)
        assert [copy.attempt for copy in consumer.received] == [1, 1]
        assert not consumer.repeated
    finally:
        await standby.stop()
        task.cancel()


@pytest.mark.seed("A24", "A26")
async def test_of_dispatchers_that_come_at_once_one_decides(bench: Bench) -> None:
    """What they find: consumers, and messages of groups that nobody owns yet."""
    await bench.run(orders=lane())
    consumers = [await bench.joined(f"c{number}") for number in range(3)]
    await bench.crash()
    client = await bench.client()
    for number in range(300):
        client.send("in", b"%d" % number, f"g{number % 100}")
    await client.confirmed()
    settings = bench.settings(orders=lane())
    rivals = [LaneRunner(settings, settings.lanes["orders"]) for _ in range(3)]

    def one_leads() -> bool:
        states = sorted(rival.state.value for rival in rivals)
        assert states.count(RunnerState.LEADING.value) <= 1
        return states == ["leading", "standing by", "standing by"]

    with capture_logs() as logged:
        tasks = [asyncio.create_task(rival.run()) for rival in rivals]
        try:
            await eventually(one_leads)
            await eventually(lambda: sum(len(c.received) for c in consumers) == 300)
            assert one_leads()
        finally:
            for rival, task in zip(rivals, tasks, strict=True):
                await rival.stop()
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
    assert [line["event"] for line in logged if line["event"] == "lane_interrupted"] == [], (
        "nobody tried more"
    )
    copies = [(copy, c.id) for c in consumers for copy in c.received]
    assert len({(copy.group, copy.epoch, owner) for copy, owner in copies}) == 100, "one owner each, once"
    assert {copy.attempt for copy, _ in copies} == {1}
    assert not any(consumer.repeated for consumer in consumers)
