"""`groups move` and `groups reroute`, end to end (docs/semantics.md, O-28 to O-31)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pamqp import commands

from dispatcher.amqp.events import Fetched
from dispatcher.amqp.properties import split_table
from dispatcher.errors import CommandRefused
from tests.amqp.samples import EVERY_TYPE, field, long, producers_fields, table_of, text
from tests.amqp.samples import properties as raw_properties
from tests.service.clients import Client
from tests.service.harness import Bench, lane
from tests.service.operating import bodies, operator, ordered, sent
from tests.service.protocol_consumer import ProtocolConsumer, read_properties
from tests.spec.lane_bench import clause
from tests.waiting import eventually

MANY = 3_000
WHERE_IT_WAS = [
    text("x-dispatch-exchange", ""), text("x-dispatch-group", "g"), text("x-dispatch-routing-key", "in"),
]  # fmt: skip


def at(target: list[Fetched]) -> list[bytes]:
    return [fetched.body for fetched in target]


async def stuck(bench: Bench, client: Client, count: int) -> ProtocolConsumer:
    """A consumer has the first message of group `g`, and so many wait behind it."""
    consumer = await bench.joined("c1", hold=True, prefetch=1)
    await sent(client, "g", *(b"%d" % number for number in range(count + 1)))
    await consumer.has(1)
    return consumer


@pytest.mark.seed("Q22")
async def test_a_move_takes_exactly_what_waits_in_order(bench: Bench) -> None:
    await bench.run(orders=lane("in", "low"))
    client = await bench.client()
    await client.declare("elsewhere")
    consumer = await bench.joined("c1", hold=True, prefetch=2)
    await sent(client, "g", b"1")
    await sent(client, "h", b"1")
    await consumer.has(2)
    await sent(client, "g", b"2", b"3", b"4")
    await sent(client, "h", b"2")
    client.send("low", b"5", "g")
    await client.confirmed()
    done = {"operation": "move", "group": "g", "open": False, "in_flight": 1}
    counted = await ordered(bench, "groups.move", group="g", to="elsewhere", dry_run=True)
    assert counted == {**done, "applied": False, "messages": 4}
    some = await ordered(bench, "groups.move", group="g", to="elsewhere", first=1)
    assert some == {**done, "applied": True, "messages": 1}
    rest = await operator(bench, "groups", "move", "orders", "g", "--to", "elsewhere")
    assert rest == "g: 3 messages moved to elsewhere; 1 message in flight\n"
    there = at(await client.take("elsewhere"))
    assert sorted(there) == [b"2", b"3", b"4", b"5"]
    assert [body for body in there if body != b"5"] == [b"2", b"3", b"4"]
    consumer.release()
    await consumer.has(3)
    await bench.acked()
    await bench.acked("low")
    await sent(client, "g", b"6")
    await consumer.has(4)
    assert (bodies(consumer, b"g"), bodies(consumer, b"h")) == ([b"1", b"6"], [b"1", b"2"])


@pytest.mark.seed("Q23")
async def test_a_reroute_publishes_to_the_exchange(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    await client.declare("europe")
    exchange = commands.Exchange.Declare(exchange="shop", exchange_type="topic", durable=True)
    await client.link.call(client.channel, exchange)
    bind = commands.Queue.Bind(queue="europe", exchange="shop", routing_key="eu.*")
    await client.link.call(client.channel, bind)
    consumer = await stuck(bench, client, 4)
    reroute = ("groups", "reroute", "orders", "g", "--exchange", "shop")
    some = await operator(bench, *reroute, "--key", "eu.fr", "--first", "2")
    assert some == "g: 2 messages rerouted to shop; 1 message in flight\n"
    taken = await client.take("europe")
    assert [(m.exchange, m.routing_key, m.body) for m in taken] == [
        (b"shop", b"eu.fr", b"1"), (b"shop", b"eu.fr", b"2"),
    ]  # fmt: skip
    with pytest.raises(CommandRefused, match="has no queue for key 'us': nothing was changed"):
        await ordered(bench, "groups.reroute", group="g", exchange="shop", key="us")
    consumer.release()
    await consumer.has(3)
    await bench.acked()
    assert consumer.bodies() == [b"0", b"3", b"4"]


@pytest.mark.seed("Q22")
async def test_what_arrives_is_the_original_and_says_where_it_was(bench: Bench) -> None:
    clause("O-29", "The target gets the original's properties, headers and body byte for byte")
    clause("O-29", "`delivery_mode` and `expiration` stay")
    clause("O-29", "`CC` and `BCC` headers are not obeyed again by a move")
    await bench.run(orders=lane())
    client = await bench.client()
    for queue in ("elsewhere", "audit"):
        await client.declare(queue)
    await stuck(bench, client, 0)
    fields = [text("x-group-id", "g"), *EVERY_TYPE.values(), field("CC", "A", long(b"S" + long(b"audit")))]
    given: dict[str, Any] = {
        "content_type": b"text/plain", "delivery_mode": 1, "priority": 5, "correlation_id": b"c",
        "reply_to": b"r", "expiration": b"60000", "message_id": b"m", "timestamp": 5, "type_": b"t",
        "app_id": b"a",
    }  # fmt: skip
    original = raw_properties(*fields, **given)
    client.send_raw("in", b"x" * 200_000, original)
    await client.confirmed()
    await client.has_ready("audit", 1)
    done = await ordered(bench, "groups.move", group="g", to="elsewhere")
    assert done["messages"] == 1
    (copy,) = await client.take("elsewhere")
    assert await client.ready("audit") == 1, "CC is not obeyed again"
    before, _, after = table_of(copy.properties)
    expected = table_of(original)
    assert (before[:-4], after, copy.body) == (expected[0][:-4], expected[2], b"x" * 200_000)
    assert producers_fields(copy.properties) == producers_fields(original)
    ours = [one for one in split_table(copy.properties)[0] if one[1:].startswith(b"x-dispatch-")]
    (origin,) = set(ours).difference(WHERE_IT_WAS)
    assert sorted(ours) == sorted([origin, *WHERE_IT_WAS])
    assert origin.startswith(b"\x11x-dispatch-originS")
    assert origin[len("_x-dispatch-originS____") :].startswith(b"in ")


async def test_a_reroute_obeys_what_it_publishes(bench: Bench) -> None:
    clause("O-29", "a reroute is a publish like any other")
    await bench.run(orders=lane())
    client = await bench.client()
    for queue in ("elsewhere", "audit"):
        await client.declare(queue)
    bind = commands.Queue.Bind(queue="elsewhere", exchange="amq.direct", routing_key="k")
    await client.link.call(client.channel, bind)
    bind = commands.Queue.Bind(queue="audit", exchange="amq.direct", routing_key="audit")
    await client.link.call(client.channel, bind)
    await stuck(bench, client, 0)
    client.send("in", b"1", "g", field("CC", "A", long(b"S" + long(b"audit"))))
    await client.confirmed()
    await client.has_ready("audit", 1)  # the producer's own
    done = await ordered(bench, "groups.reroute", group="g", exchange="amq.direct", key="k")
    assert done["messages"] == 1
    assert at(await client.take("elsewhere")) == [b"1"]
    assert at(await client.take("audit")) == [b"1", b"1"]


async def test_a_target_that_is_full_stops_it_and_the_rest_goes_on_in_order(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    await client.declare("small", x_max_length=3, x_overflow="reject-publish")
    consumer = await stuck(bench, client, 9)
    with pytest.raises(CommandRefused) as stopped:
        await ordered(bench, "groups.move", group="g", to="small")
    took = at(await client.take("small"))
    assert str(stopped.value).endswith(
        f"queue 'small' took no more (is it full?): {len(took)} of its messages went, the rest stays in order"
    )
    assert took == [b"%d" % number for number in range(1, len(took) + 1)]
    with pytest.raises(CommandRefused, match="there is no queue 'gone': nothing was changed"):
        await ordered(bench, "groups.move", group="g", to="gone")
    with pytest.raises(CommandRefused, match="there is no exchange 'gone': nothing was changed"):
        await ordered(bench, "groups.reroute", group="g", exchange="gone", key="k")
    inner = commands.Exchange.Declare(exchange="inner", internal=True)
    await client.link.call(client.channel, inner)
    with pytest.raises(
        CommandRefused, match=r"exchange 'inner': RabbitMQ refused it: 403 .*: nothing was changed"
    ):
        await ordered(bench, "groups.reroute", group="g", exchange="inner", key="k")
    with pytest.raises(CommandRefused, match="to: 'in' is an inbound queue of this lane"):
        await ordered(bench, "groups.move", group="g", to="in")
    with pytest.raises(CommandRefused, match=r"is the queue of consumer 'c1'"):
        await ordered(bench, "groups.move", group="g", to=consumer.queue)
    consumer.release()
    await consumer.has(10 - len(took))
    await bench.acked()
    assert consumer.bodies() == [b"0", *(b"%d" % number for number in range(len(took) + 1, 10))]
    assert {copy.attempt for copy in consumer.received} == {1}


@pytest.mark.seed("Q22")
async def test_a_dispatcher_that_dies_in_the_middle_leaves_it_to_the_next(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    await client.declare("elsewhere")
    consumer = await stuck(bench, client, MANY)
    moving = asyncio.create_task(ordered(bench, "groups.move", group="g", to="elsewhere"))

    async def has_some() -> bool:
        return await client.ready("elsewhere") > 0

    await eventually(has_some)
    await bench.crash()
    await bench.run(orders=lane())
    done = await moving
    taken = await client.take("elsewhere")
    assert done["messages"] == MANY
    last = {m.body: place for place, m in enumerate(taken)}
    assert sorted(last, key=lambda body: last[body]) == [b"%d" % number for number in range(1, MANY + 1)]
    assert len(taken) - MANY <= 256
    origins = {(m.body, (read_properties(m.properties).headers or {})["x-dispatch-origin"]) for m in taken}
    assert len(origins) == MANY, "a repeated one has the same origin"
    consumer.release()
    await bench.acked()
    assert set(consumer.bodies()) == {b"0"}
