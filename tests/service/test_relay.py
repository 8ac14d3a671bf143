"""What a copy looks like: the original byte for byte, but for the exceptions that docs/protocol.md names."""

from __future__ import annotations

import hashlib
import time
import uuid

from tests.amqp.samples import EVERY_TYPE, field, long, producers_fields, properties, table_of, text
from tests.service.harness import Bench, lane
from tests.service.protocol_consumer import read_properties
from tests.spec.lane_bench import clause


async def test_everything_is_relayed_byte_for_byte(bench: Bench) -> None:
    clause("D-2", "A copy carries the original's properties, headers and body byte for byte")
    clause("D-2", "a present `delivery_mode` becomes 1")
    await bench.run(orders=lane())
    consumer = await bench.joined("c1")
    client = await bench.client()
    table = text("x-group-id", "g") + b"".join(EVERY_TYPE.values())
    sent = properties(
        table, content_type=b"application/x-thing", content_encoding=b"gzip", delivery_mode=2, priority=7,
        correlation_id=b"corr", reply_to=b"answers", message_id=b"m-1", timestamp=1_790_000_000_123,
        type_=b"dispatch.ping", app_id=b"app", cluster_id=b"c",
    )  # fmt: skip
    body = bytes(range(256)) * 3
    client.send_raw("in", body, sent)
    copy = (await consumer.has(1))[0]
    assert copy.body == body
    before, fields, after = table_of(copy.raw)
    sent_before, _, sent_after = table_of(sent)
    assert before[:-4] == sent_before[:-4]
    assert after[1:] == sent_after[1:]
    assert (sent_after[0], after[0]) == (2, 1)  # a copy is transient, the original was not
    assert producers_fields(copy.raw) == producers_fields(sent)
    assert all(name in fields for name in (b"x-dispatch-seq", b"x-dispatch-id", b"x-dispatch-group"))


async def test_absent_properties_stay_absent(bench: Bench) -> None:
    clause("D-2", "absent means the same and stays absent")
    await bench.run(orders=lane())
    consumer = await bench.joined("c1")
    client = await bench.client()
    client.send_raw("in", b"", properties(table=False))
    copy = (await consumer.has(1))[0]
    assert copy.body == b""
    assert copy.raw[:2] == b"\x20\x00"  # the header table only, which holds ours
    assert set(copy.headers) == {f"x-dispatch-{name}" for name in ("seq", "epoch", "attempt", "id")}


async def test_the_added_headers_say_who_and_where(bench: Bench) -> None:
    clause("D-2", "incoming `x-dispatch-*`, `x-delivery-count` and `x-acquired-count` are removed")
    await bench.run(orders=lane())
    consumer = await bench.joined("c1")
    client = await bench.client()
    forged = text("x-dispatch-group", "forged") + field("x-dispatch-seq", "l", bytes(8))
    counted = field("x-delivery-count", "l", bytes(8)) + field("x-acquired-count", "l", bytes(8))
    client.send("in", b"1", b"\xff\x00g", forged, counted)
    client.send("in", b"2", b"\xff\x00g")
    one, two = await consumer.has(2)
    assert (one.group, two.group) == (b"\xff\x00g", b"\xff\x00g")
    assert (one.group_seq, two.group_seq) == (1, 2)
    assert one.epoch == two.epoch > int(time.time() - 60) << 20
    assert two.seq == one.seq + 1 > int(time.time() - 60) << 20
    assert (one.attempt, two.attempt) == (1, 1)
    assert len(bytes.fromhex(one.identity)) == 16
    assert one.identity != two.identity
    # Itself, x-dispatch-group-seq and, as it is not UTF-8, x-dispatch-group-base64: the forged one is gone.
    assert one.raw.count(b"x-dispatch-group") == 3
    assert not {"x-delivery-count", "x-acquired-count"} & set(one.headers)


async def test_cc_is_relayed_and_not_obeyed_again(bench: Bench) -> None:
    """Through the default exchange RabbitMQ would obey it at every hop: copies in `audit`, a loop in `in`."""
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1")
    await client.declare("audit")
    cc = field("CC", "A", long(b"".join(b"S" + long(name) for name in (b"audit", b"in"))))
    bcc = field("BCC", "A", long(b"S" + long(b"audit")))
    client.send("in", b"1", "g", cc)
    client.send("in", b"2", "g", bcc)
    client.send("in", b"3", "g")
    await consumer.has(3)
    await bench.acked()
    assert consumer.bodies() == [b"1", b"2", b"3"]
    assert consumer.received[0].headers["CC"] == ["audit", "in"]
    assert [message.body for message in await client.take("audit")] == [b"1", b"2"]  # the producer's own


async def test_a_user_id_becomes_a_header(bench: Bench) -> None:
    clause("D-2", "a `user_id` becomes the header `x-dispatch-user-id`")
    await bench.run(orders=lane())
    consumer = await bench.joined("c1")
    client = await bench.client()
    client.send("in", b"x", "g", user_id=b"guest", app_id=b"app")
    copy = (await consumer.has(1))[0]
    assert copy.properties.user_id is None
    assert copy.properties.app_id == "app"
    assert copy.headers["x-dispatch-user-id"] == "guest"


async def test_an_expiration_becomes_a_deadline(bench: Bench) -> None:
    clause("D-2", "`expiration` becomes `x-dispatch-deadline` (ms since 1970)")
    await bench.run(orders=lane())
    consumer = await bench.joined("c1")
    client = await bench.client()
    before = int(time.time() * 1000)  # a deadline is of whole ms
    client.send("in", b"x", "g", expiration=b"60000")
    copy = (await consumer.has(1))[0]
    assert copy.properties.expiration is None
    assert before + 60_000 <= copy.headers["x-dispatch-deadline"] <= time.time() * 1000 + 60_000


async def test_large_bodies_arrive_whole(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    blocks = [uuid.uuid4().bytes * 65_536 for _ in range(3)]  # 1 MiB each: several frames
    for block in blocks:
        client.send("in", block, "g")
    await client.confirmed()
    consumer = await bench.joined("c1")
    copies = await consumer.has(3)
    digests = [hashlib.sha256(copy.body).hexdigest() for copy in copies]
    assert digests == [hashlib.sha256(block).hexdigest() for block in blocks]


async def test_a_refused_message_carries_its_story_to_the_dead_queue(bench: Bench) -> None:
    """Given up: the original with all that section 5 lists, persistent, with what the producer sent."""
    clause(
        "D-5",
        "copy is persistent and carries `x-dispatch-reason`, `x-dispatch-attempt` (hand-overs)",
    )
    clause(
        "D-5",
        "`x-dispatch-origin` (inbound queue, arrival number), `x-dispatch-exchange` and",
    )
    await bench.run(orders=lane())
    consumer = await bench.joined("c1", hold=True)
    client = await bench.client()
    table = text("x-group-id", b"g\xff") + EVERY_TYPE["double"] + EVERY_TYPE["not utf-8"]
    sent = properties(
        table, content_type=b"text/plain", delivery_mode=1, message_id=b"m", expiration=b"3600000"
    )
    client.send_raw("in", b"poison", sent)
    copy = (await consumer.has(1))[0]
    consumer.fail(copy.seq, "can't parse it", attempts=3)
    dead_queue = bench.names().dead
    await client.has_ready(dead_queue, 1)
    (dead,) = await client.take(dead_queue)
    assert dead.body == b"poison"
    assert producers_fields(dead.properties) == producers_fields(sent)
    read = read_properties(dead.properties)
    assert (read.delivery_mode, read.content_type, read.message_id) == (2, "text/plain", "m")
    assert read.expiration is None
    headers = read.headers or {}
    assert headers["x-dispatch-reason"] == "can't parse it"
    assert headers["x-dispatch-attempt"] == 1
    assert headers["x-dispatch-group"] == b"g\xff"
    assert headers["x-dispatch-exchange"] == ""
    assert headers["x-dispatch-routing-key"] == "in"
    queue, _, arrival = headers["x-dispatch-origin"].partition(" ")
    assert queue == "in"
    assert arrival.endswith(".1")
    await bench.acked()
