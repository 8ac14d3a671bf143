"""What a consumer gets is what the producer sent, seen on two connections of a real broker."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic, Queue

from dispatcher.amqp.events import ChannelClosed, Confirmed, Delivery, Returned
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.relay import Content, copy_frames, dead_frames, delivery_count, read_content
from tests.amqp.conftest import Connect, Peer
from tests.amqp.samples import EVERY_TYPE, field, long, producers_fields, properties, table_of, text
from tests.waiting import eventually

GROUPING = Grouping(("x-group-id",), "x-group-seq")
ADDED: dict[str, Any] = {"seq": 1, "group_seq": 1, "epoch": 2**50, "attempt": 1}
FULL: dict[str, Any] = {
    "content_type": b"text/plain", "content_encoding": b"gzip", "priority": 5, "correlation_id": b"\xff",
    "reply_to": b"rep", "message_id": b"mid", "timestamp": 1_790_000_000_123, "type_": b"typ",
    "app_id": b"app",
}  # fmt: skip


class Relay:
    """An inbound queue, a consumer queue, and what the dispatcher does between them."""

    def __init__(self, ours: Peer, consumer: Peer) -> None:
        self.ours, self.consumer = ours, consumer

    async def set_up(self, **arguments: Any) -> None:
        self.channel = await self.ours.channel()
        self.inbound = await self.ours.queue(self.channel, "inbound", durable=True, arguments=arguments)
        theirs = await self.consumer.channel()
        self.queue = await self.consumer.queue(theirs, exclusive=True, auto_delete=True)
        self.exchange = await self.ours.lane_exchange(self.channel, self.inbound)
        await self.consumer.lane_exchange(theirs, self.queue)
        await self.consumer.consume(theirs, self.queue, no_ack=True)
        await self.ours.consume(self.channel, self.inbound)

    async def relay(self, raw: bytes, body: bytes = b"body") -> tuple[Content, Delivery]:
        """Publish an original, relay it, and return what was read and what the consumer got."""
        count = len(self.ours.of(Delivery))
        self.ours.put(self.channel, self.inbound, body, raw)
        original = (await self.ours.deliveries(count + 1))[-1]
        content = read_content(original, GROUPING)
        frames = copy_frames(
            content, channel=self.channel, exchange=self.exchange, routing_key=self.queue,
            group=content.group, frame_max=self.ours.link.frame_max, **ADDED,
        )  # fmt: skip
        assert frames is not None
        self.ours.link.write(self.channel, frames, 1)
        return content, (await self.consumer.deliveries(count + 1))[-1]


@pytest.fixture
async def relay(connect: Connect) -> Relay:
    relay = Relay(await connect(), await connect())
    await relay.set_up()
    return relay


def _expected(raw: bytes) -> tuple[bytes, bytes]:
    before, _, after = table_of(raw)
    return before[:-4], b"\x01" + after[1:] if raw[0] & 0x10 else after


@pytest.mark.parametrize("mode", [None, 1, 2])
async def test_every_header_type_and_property_arrives_byte_for_byte(relay: Relay, mode: int | None) -> None:
    raw = properties(*EVERY_TYPE.values(), text("x-group-id", b"\xff\xfe"), **FULL, delivery_mode=mode)
    content, copy = await relay.relay(raw, b"\x00\xff" * 1_000)
    before, fields, after = table_of(copy.properties)
    expected_before, expected_after = _expected(raw)
    assert (before[:-4], after, copy.body) == (expected_before, expected_after, b"\x00\xff" * 1_000)
    assert producers_fields(copy.properties) == producers_fields(raw)
    assert text("x-dispatch-group", b"\xff\xfe") in fields
    assert text("x-dispatch-id", content.fingerprint.hex()) in fields
    assert (copy.exchange, copy.routing_key) == (b"dispatch.lane", relay.queue.encode())


async def test_absent_properties_stay_absent(relay: Relay) -> None:
    _, copy = await relay.relay(b"\x00\x00", b"")
    before, fields, after = table_of(copy.properties)
    assert (before[:2], after, copy.body) == (b"\x20\x00", b"", b"")
    assert b"x-dispatch-group" not in fields


async def test_one_kilobyte_groups_and_large_bodies(relay: Relay) -> None:
    content, copy = await relay.relay(properties(text("x-group-id", b"g" * 1_024)), b"b" * 500_000)
    assert content.group == b"g" * 1_024
    assert copy.body == b"b" * 500_000


async def test_cc_and_bcc_are_not_obeyed_again(relay: Relay) -> None:
    peer = relay.ours
    audit = await peer.queue(relay.channel, "audit")
    names = [field(name, "A", long(b"S" + long(b"audit"))) for name in ("CC", "BCC")]
    raw = properties(*names, text("x-group-id", "g"))
    _, copy = await relay.relay(raw)
    # The producer's own publish put one into audit, and the broker took BCC out.
    assert producers_fields(copy.properties) == [names[0], text("x-group-id", "g")]
    look = Queue.Declare(queue=audit, passive=True)
    assert (await peer.link.call(relay.channel, look)).message_count == 1
    assert len(peer.of(Delivery)) == 1
    # Through the default exchange the same copy would be sent to audit again.
    peer.put(relay.channel, relay.queue, copy.body, copy.properties)
    await relay.consumer.deliveries(2)
    assert (await peer.link.call(relay.channel, look)).message_count == 2


async def test_a_user_id_is_relayed_as_a_header(relay: Relay) -> None:
    raw = properties(text("x-group-id", "g"), user_id=b"guest", delivery_mode=2)
    _, copy = await relay.relay(raw)
    before, fields, after = table_of(copy.properties)
    assert text("x-dispatch-user-id", "guest") in fields
    assert (before[:2], after) == (b"\x30\x00", b"\x01")


async def test_why_a_user_id_cannot_be_relayed_as_it_is(relay: Relay) -> None:
    relay.ours.put(relay.channel, relay.inbound, b"", properties(user_id=b"somebody"))
    (closed,) = await relay.ours.until(ChannelClosed)
    assert closed.code == 406
    assert "user_id property set to 'somebody'" in closed.text


async def test_expiration_is_dropped_from_a_copy(relay: Relay) -> None:
    content, copy = await relay.relay(properties(expiration=b"600000", message_id=b"m"))
    assert content.expiration_ms == 600_000
    before, _, after = table_of(copy.properties)
    assert (before[:2], after) == (b"\x20\x80", b"\x01m")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x00", properties(), properties(delivery_mode=2, message_id=b"m"),
        properties(text("z", "1"), text("x-group-id", "g"), text("a", "2"), *EVERY_TYPE.values(), **FULL),
        properties(text("a", "1"), text("a", "2"), delivery_mode=2, low_bits=3),
    ],
    ids=["bare", "empty table", "no table", "unsorted", "duplicates"],
)  # fmt: skip
async def test_a_redelivery_has_the_same_fingerprint(connect: Connect, kind: str, raw: bytes) -> None:
    peer = await connect()
    channel = await peer.channel()
    queue = await peer.queue(channel, "q", durable=True, arguments={"x-queue-type": kind})
    await peer.consume(channel, queue)
    peer.put(channel, queue, b"body", raw)
    for tag in (1, 2):
        await peer.deliveries(tag)
        peer.link.send(channel, Basic.Nack(delivery_tag=tag, requeue=True))
    first, *again = await peer.deliveries(3)
    assert [delivery.redelivered for delivery in again] == [True, True]
    counts = [delivery_count(delivery.properties) for delivery in (first, *again)]
    assert counts == ([0, 1, 2] if kind == "quorum" else [0, 0, 0])
    contents = [read_content(delivery, GROUPING) for delivery in (first, *again)]
    assert len({content.fingerprint for content in contents}) == 1
    assert contents[0].group == contents[1].group
    assert b"x-delivery-count" not in contents[2].properties


async def test_a_dead_letter_is_the_persistent_original(relay: Relay) -> None:
    peer = relay.ours
    raw = properties(*EVERY_TYPE.values(), text("x-group-id", "g"), **FULL, delivery_mode=1)
    content, _ = await relay.relay(raw)
    dead = await peer.queue(relay.channel, "dead", durable=True)
    await peer.lane_exchange(relay.channel, dead)
    frames = dead_frames(
        content, channel=relay.channel, exchange=relay.exchange, routing_key=dead, reason="failed: \udcff ö",
        attempt=3, calls=2, group=b"g", origin="inbound 1790000000.1", frame_max=peer.link.frame_max,
    )  # fmt: skip
    peer.link.write(relay.channel, frames, 1)
    await peer.consume(relay.channel, dead, "dead")
    (buried,) = [d for d in await peer.deliveries(2) if d.consumer_tag == b"dead"]
    before, fields, after = table_of(buried.properties)
    expected_before, _ = _expected(raw)
    assert (before[:-4], buried.body) == (expected_before, b"body")
    assert after[:1] == b"\x02"
    assert producers_fields(buried.properties) == producers_fields(raw)
    assert text("x-dispatch-reason", "failed: ? ö") in fields
    assert text("x-dispatch-exchange", "") in fields
    assert text("x-dispatch-routing-key", "inbound") in fields


async def test_a_header_frame_of_the_largest_size_passes(relay: Relay) -> None:
    small, _ = await relay.relay(properties(text("pad", "")))
    frames = copy_frames(
        small, channel=relay.channel, exchange=relay.exchange, routing_key=relay.queue, group=None,
        frame_max=relay.ours.link.frame_max, **ADDED,
    )  # fmt: skip
    assert frames is not None
    room = (
        relay.ours.link.frame_max
        - 20
        - (len(table_of((await relay.consumer.deliveries(1))[0].properties)[1]) + 6)
    )
    _, copy = await relay.relay(properties(text("pad", b"p" * room)))
    assert len(copy.properties) == relay.ours.link.frame_max - 20
    await eventually(lambda: relay.ours.of(Confirmed))
    assert relay.ours.of(Returned) == []
