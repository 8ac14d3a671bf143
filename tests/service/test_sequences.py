"""Numbers of producers (`sequence_check`) on real servers: docs/semantics.md, N-1, N-3, N-4, N-7."""

from __future__ import annotations

import asyncio

from tests.amqp.samples import field, text
from tests.service.clients import Client
from tests.service.conftest import Starter
from tests.service.harness import Bench, lane
from tests.waiting import eventually

REPORT = {"sequence_check": "report"}


def send(client: Client, number: int | str | None, group: str = "g", body: bytes = b"x") -> None:
    """A message with this number, as a 64-bit integer or as text; None: without one."""
    fields = []
    if isinstance(number, int):
        fields = [field("x-group-seq", "l", number.to_bytes(8, signed=True))]
    elif number is not None:
        fields = [text("x-group-seq", number)]
    client.send("in", body, group, *fields)


async def test_gaps_and_repeated_numbers_are_counted_and_shown(bench: Bench) -> None:
    await bench.run(orders=lane(**REPORT))
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True, prefetch=100)
    for number in (1, 2, "3", None, "many", 7, 7, 8, 4, 9):
        send(client, number)
    await consumer.has(10)
    assert (bench.counter("sequence_gaps"), bench.counter("sequence_repeats")) == (1, 2)
    shown = await bench.ask("groups.show", group="g")
    assert shown["last_number"] == 9
    assert [m["number"] for m in shown["messages"]] == [1, 2, 3, None, None, 7, 7, 8, 4, 9]
    why = await bench.ask("groups.why", group="g")
    assert any("number 4 came again, or late: 9 was due" in line for line in why["details"])
    send(client, -10)
    send(client, 500)
    consumer.release()
    await consumer.has(12)
    await bench.acked()
    assert bench.counter("sequence_gaps") == 1, "behind a close any number may come"


async def test_kill_9_makes_no_gap_and_hides_none(bench: Bench, dispatcher_process: Starter) -> None:
    one = dispatcher_process(orders=lane(**REPORT))
    one.ready()
    client = await bench.client()
    consumer = await bench.joined("c1")

    async def counted(name: str) -> float:
        lines = (await asyncio.to_thread(one.get, "/metrics"))[1].splitlines()
        (line,) = [line for line in lines if line.startswith(f"dispatcher_{name}_total{{")]
        return float(line.rpartition(" ")[2])

    for round_ in range(3):
        for number in range(100 * round_, 100 * round_ + 100):
            send(client, number // 2, f"g{number % 2}")
        had = len(consumer.received)
        await eventually(lambda had=had: len(consumer.received) > had + 20)
        assert (await counted("sequence_gaps"), await counted("sequence_repeats")) == (0, 0)
        one.kill9()
        one.start()
    await eventually(lambda: len(consumer.received) >= 300)
    await asyncio.to_thread(one.ready)
    assert await counted("sequence_repeats") == 0
    assert await counted("sequence_gaps") == 0
    send(client, 150, "g0")
    send(client, 152, "g0")
    await consumer.has(302)

    async def is_counted() -> bool:
        return await counted("sequence_gaps") == 1

    await eventually(is_counted)


async def test_what_follows_a_gap_waits_for_it(bench: Bench) -> None:
    await bench.run(orders=lane(sequence_check="hold", sequence_timeout="1d"))
    client = await bench.client()
    consumer = await bench.joined("c1")
    for number in (1, 4, 3, 6, 2):
        send(client, number, body=b"%d" % number)
    await consumer.has(4)
    assert [copy.body for copy in consumer.received] == [b"1", b"2", b"3", b"4"]
    why = await bench.ask("groups.why", group="g")
    assert (why["reason"], why["facts"]["number"]) == ("number_missing", 5)
    await bench.ask("groups.resume", group="g")
    await consumer.has(5)
    await bench.acked()
    assert bench.counter("sequence_gaps") == 1
    assert bench.counter("sequence_waits") >= 1


async def test_a_gap_is_waited_for_no_longer_than_the_timeout(bench: Bench) -> None:
    await bench.run(orders=lane(sequence_check="hold", sequence_timeout="100ms"))
    client = await bench.client()
    consumer = await bench.joined("c1")
    for number in (1, 3):
        send(client, number, body=b"%d" % number)
    await consumer.has(2)
    await bench.acked()
    assert bench.counter("sequence_gaps") == 1


async def test_kill_9_keeps_the_order_of_numbers(bench: Bench, dispatcher_process: Starter) -> None:
    """Every second message of a group comes before the one that its producer numbered before it."""
    one = dispatcher_process(orders=lane(sequence_check="hold", sequence_timeout="1h"))
    one.ready()
    client = await bench.client()
    consumer = await bench.joined("c1")
    for round_ in range(3):
        for number in range(100 * round_, 100 * round_ + 100):
            group, place = number % 2, number // 2
            # The first of a group may have any number: 0, 2, 1, 4, 3, …
            swapped = place and place + (1 if place % 2 else -1)
            send(client, swapped, f"g{group}", body=b"%d" % swapped)
        had = len(consumer.received)
        await eventually(lambda had=had: len(consumer.received) > had + 20)
        if round_ < 2:
            one.kill9()
            one.start()
    send(client, 149, "g0", body=b"149")
    send(client, 149, "g1", body=b"149")
    await eventually(lambda: len(consumer.received) >= 302)
    for group in (b"g0", b"g1"):
        numbers = [int(copy.body) for copy in consumer.received if copy.group == group]
        assert numbers == list(range(151)), group
