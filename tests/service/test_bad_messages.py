"""Messages that nobody should send: none is lost, none stops the lane, and the reason names what is wrong."""

from __future__ import annotations

import hashlib

import pytest

from dispatcher.amqp.wire import FRAME_OVERHEAD_BYTES
from tests.amqp.samples import EVERY_TYPE, field, long, nested, properties, text
from tests.service.harness import Bench, lane
from tests.service.protocol_consumer import read_properties
from tests.spec.lane_bench import clause

ODD_GROUPS = [
    b"a/b", b"a.b.c", b"#", b"*", b"a*b#c", b"100%", b"%", b"%41", b" ", b"two words", b"\n\t", b"\x00",
    b"\xff\xfe\x00\x80", "grün 🐇".encode(), b"g" * 1024, b"-" * 60_000, b"../../etc", b"'; DROP", b"{tag}",
]  # fmt: skip


@pytest.mark.seed("C5")
async def test_any_bytes_are_a_group(bench: Bench) -> None:
    clause("O-1", "A group id is any non-empty byte string")
    await bench.run(orders=lane())
    client = await bench.client()
    for number in (1, 2):  # no two messages are equal in every byte: a crash may repeat those
        for group in ODD_GROUPS:
            client.send("in", _body(group, number), group)
    await client.confirmed()
    consumer = await bench.joined("c1", hold=True)
    await consumer.has(2 * len(ODD_GROUPS))
    for group in ODD_GROUPS:
        copies = consumer.of_group(group)
        assert [copy.group_seq for copy in copies] == [1, 2], group
        assert [copy.body for copy in copies] == [_body(group, 1), _body(group, 2)]
    listed = (await bench.ask("groups.list", limit=100))["groups"]
    assert len(listed) == len(ODD_GROUPS)
    for row in listed:
        shown = await bench.ask("groups.show", group=row["group"])
        assert (shown["group"], shown["in_flight"]) == (row["group"], 2)
    await bench.crash()
    await bench.run(orders=lane())
    consumer.release()
    await bench.acked()
    assert len(consumer.received) == 2 * len(ODD_GROUPS)


def _body(group: bytes, number: int) -> bytes:
    return hashlib.sha256(b"%d %s" % (number, group)).digest()


async def test_integers_are_groups_by_their_decimal_text(bench: Bench) -> None:
    clause("O-1", 'integers in decimal, so 1 and "1" are one group')
    await bench.run(orders=lane())
    client = await bench.client()
    numbers = [
        field("x-group-id", "l", (7).to_bytes(8)),
        field("x-group-id", "I", (7).to_bytes(4)),
        field("x-group-id", "b", b"\x07"),
        text("x-group-id", "7"),
    ]
    for number in numbers:
        client.send_raw("in", b"x", properties(number))
    client.send_raw("in", b"x", properties(field("x-group-id", "l", (-7).to_bytes(8, signed=True))))
    consumer = await bench.joined("c1")
    await consumer.has(5)
    assert [copy.group_seq for copy in consumer.of_group("7")] == [1, 2, 3, 4]
    assert [copy.group_seq for copy in consumer.of_group("-7")] == [1]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("F", long(text("inner", "x"))),
        ("F", long(nested(50))),
        ("A", long(b"S" + long(b"x"))),
        ("t", b"\x01"),
        ("d", bytes(8)),
        ("f", bytes(4)),
        ("D", bytes(5)),
        ("T", bytes(8)),
    ],
)
async def test_a_group_of_another_type_goes_to_the_dead_queue(bench: Bench, kind: str, value: bytes) -> None:
    clause("O-1", "timestamp, table or array is refused: the message goes to the dead queue")
    clause("G-7", "A message that can't be delivered is dead-lettered with a reason")
    await bench.run(orders=lane())
    client = await bench.client()
    client.send_raw("in", b"odd", properties(field("x-group-id", kind, value), delivery_mode=2))
    client.send("in", b"fine", "g")
    consumer = await bench.joined("c1")
    await consumer.has(1)
    await client.has_ready(bench.names().dead, 1)
    (dead,) = await client.take(bench.names().dead)
    assert dead.body == b"odd"
    assert field("x-group-id", kind, value) in dead.properties
    assert b"x-group-id" in _reason(dead.properties)
    assert consumer.bodies() == [b"fine"]
    await bench.acked()


async def test_deeply_nested_headers_are_relayed(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    deep = field("deep", "F", long(nested(50)))
    client.send("in", b"x", "g", deep, *EVERY_TYPE.values())
    consumer = await bench.joined("c1")
    (copy,) = await consumer.has(1)
    assert deep in copy.raw


@pytest.mark.seed("C5")
async def test_an_empty_or_void_group_is_no_group(bench: Bench) -> None:
    clause("O-1", "An empty string or a void means no group")
    await bench.run(orders=lane(ungrouped="group:rest"))
    client = await bench.client()
    client.send("in", b"1", "")
    client.send("in", b"2")
    client.send_raw("in", b"3", properties(table=False))
    client.send_raw("in", b"4", properties(field("x-group-id", "V", b"")))
    consumer = await bench.joined("c1")
    await consumer.has(4)
    assert [copy.body for copy in consumer.of_group("rest")] == [b"1", b"2", b"3", b"4"]


async def test_bodies_of_16_mb(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    body = hashlib.sha256(b"seed").digest() * (512 * 1024)
    assert len(body) == 16 << 20
    for _ in range(2):
        client.send("in", body, "g")
    consumer = await bench.joined("c1")
    copies = await consumer.has(2)
    assert all(copy.body == body for copy in copies)
    await bench.acked()


async def test_headers_that_leave_no_room_for_ours_go_to_the_dead_queue(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    # What RabbitMQ takes from a producer, in one frame, and can't be relayed with more headers in one.
    room = client.link.frame_max - FRAME_OVERHEAD_BYTES - 12 - 200
    client.send("in", b"odd", "g", text("big", "x" * room))
    client.send("in", b"fine", "g")
    consumer = await bench.joined("c1")
    await consumer.has(1)
    await client.has_ready(bench.names().dead, 1)
    (dead,) = await client.take(bench.names().dead)
    assert dead.body == b"odd"
    assert b"unpublishable" in _reason(dead.properties)
    assert consumer.bodies() == [b"fine"]
    await bench.acked()


async def test_an_expiration_that_is_no_number_is_refused_by_rabbitmq_itself(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    client.send("in", b"x", "g", expiration=b"soon")
    with pytest.raises(AssertionError, match="406"):
        await client.confirmed()


async def test_identical_messages_are_all_handed_over(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    for _ in range(500):
        client.send("in", b"same", "g")
    consumer = await bench.joined("c1")
    await consumer.has(500)
    await bench.acked()
    assert len({copy.identity for copy in consumer.received}) == 1
    assert len(consumer.received) == 500


def _reason(raw: bytes) -> bytes:
    reason = (read_properties(raw).headers or {})["x-dispatch-reason"]
    return reason.encode() if isinstance(reason, str) else bytes(reason)
