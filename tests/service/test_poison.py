"""A message that kills its consumers ends alone; its neighbours go on, also over a fail-over."""

from __future__ import annotations

from tests.service.clients import Client
from tests.service.harness import Bench, lane
from tests.service.protocol_consumer import ProtocolConsumer, read_properties
from tests.waiting import eventually


async def _dies(bench: Bench, consumer: ProtocolConsumer) -> None:
    """It is gone, and the dispatcher knows."""
    before = bench.counter("consumers_taken")
    await consumer.drop()
    await eventually(lambda: bench.counter("consumers_taken") == before + 1)


async def _is_dead_as_poison(bench: Bench, client: Client, body: bytes) -> None:
    dead = bench.names().dead
    await client.has_ready(dead, 1)
    (message,) = await client.take(dead)
    headers = read_properties(message.properties).headers or {}
    assert (message.body, headers["x-dispatch-reason"]) == (body, "poison")


async def test_who_kills_alone_is_poison_and_its_neighbours_are_processed(bench: Bench) -> None:
    await bench.run(orders=lane(retry={"attempts": 2}))
    client = await bench.client()
    for body, group in ((b"0", "g"), (b"1", "g"), (b"2", "h")):
        client.send("in", body, group)
    consumer = await bench.joined("c1", hold=True)
    await consumer.has(3)
    await _dies(bench, consumer)
    client.send("in", b"3", "i")
    await client.confirmed()

    suspicious = await bench.joined("c1", hold=True)
    (copy,) = await suspicious.has(1)
    assert (copy.body, copy.attempt) == (b"0", 2)
    assert (await bench.ask("consumers.list"))["consumers"][0]["alone"]
    suspicious.settle([copy.seq])
    assert (await suspicious.has(2))[1].body == b"2"
    why = await bench.ask("groups.why", group="g")
    assert why["reason"] == "consumer_kept_free", "nobody has died of the second one of its group"
    await _dies(bench, suspicious)
    await _is_dead_as_poison(bench, client, b"2")

    last = await bench.joined("c1")
    await last.has(2)
    assert sorted(last.bodies()) == [b"1", b"3"]
    await bench.acked()
    assert bench.counter("poisoned") == 1


async def test_a_new_leader_knows_who_is_alone_with_a_suspect(bench: Bench) -> None:
    lanes = {"orders": lane(retry={"attempts": 2})}
    await bench.run(**lanes)
    client = await bench.client()
    client.send("in", b"0", "g")
    consumer = await bench.joined("c1", hold=True)
    await consumer.has(1)
    await _dies(bench, consumer)
    suspicious = await bench.joined("c1", hold=True)
    await suspicious.has(1)
    await bench.crash()
    await bench.run(**lanes)
    await eventually(lambda: bench.status()["in_flight"] == 1)
    client.send("in", b"1", "h")
    other = await bench.joined("c2")
    await other.has(1)
    assert suspicious.bodies() == [b"0"], "it still gets nothing else"
    await eventually(lambda: bench.counter("settled") == 1)
    await _dies(bench, suspicious)
    await _is_dead_as_poison(bench, client, b"0")
