"""The link against a real broker: what is promised about publishes, deliveries, answers and ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any, cast
from urllib.parse import quote

import pytest
from pamqp.commands import Basic, Channel, Confirm, Queue

from dispatcher.amqp.events import (
    ChannelClosed,
    Confirmed,
    ConnectionClosed,
    ConsumerCancelled,
    Delivery,
    Fetched,
    Returned,
)  # fmt: skip
from dispatcher.amqp.methods import BasicConsume, QueueDeclare
from dispatcher.errors import BrokerUnavailable, ChannelRefused
from tests.amqp.conftest import Connect, closes
from tests.amqp.samples import properties, text
from tests.conftest import Vhost
from tests.waiting import eventually


async def test_messages_come_in_order_and_acked_ones_do_not_come_back(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel(prefetch=500)
    queue = await peer.queue(channel, "inbound", durable=True)
    await peer.consume(channel, queue)
    tags = [peer.put(channel, queue, b"%d" % n) for n in range(1_000)]
    assert tags == list(range(1, 1_001))
    first = await peer.deliveries(500)
    assert [delivery.body for delivery in first] == [b"%d" % n for n in range(500)]
    peer.link.ack(channel, first[299].tag, multiple=True)
    peer.link.ack(channel, first[400].tag)
    await peer.deliveries(801)
    await peer.link.close()

    other = await connect()
    channel = await other.channel()
    await other.consume(channel, queue)
    again = await other.deliveries(699)
    assert [int(delivery.body) for delivery in again] == [n for n in range(300, 1_000) if n != 400]
    assert [delivery.redelivered for delivery in again] == [n < 801 for n in range(300, 1_000) if n != 400]


async def test_what_a_delivery_says(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    queue = await peer.queue(channel, "inbound", durable=True)
    exchange = await peer.lane_exchange(channel, queue)
    raw = properties(text("x-group-id", b"\xff"), delivery_mode=2)
    peer.link.publish(channel, exchange=exchange, routing_key=queue, properties=raw, body=b"hi")
    await peer.consume(channel, queue, "some-tag")
    (delivery,) = await peer.deliveries(1)
    assert delivery == Delivery(channel, b"some-tag", 1, False, b"dispatch.lane", b"inbound", raw, b"hi")


async def test_every_publish_is_confirmed_once(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    queue = await peer.queue(channel, exclusive=True)
    last = [peer.put(channel, queue) for _ in range(2_000)][-1]
    open_tags = set(range(1, last + 1))

    def all_confirmed() -> bool:
        for event in peer.of(Confirmed):
            assert not event.nacked
            open_tags.difference_update(range(1, event.tag + 1) if event.multiple else [event.tag])
        return not open_tags

    await eventually(all_confirmed)


async def test_returns_come_before_their_confirms_and_in_order(connect: Connect) -> None:
    # One message_id for all: what is returned is told by order and routing key, by nothing else.
    peer = await connect()
    channel = await peer.channel()
    queue = await peer.queue(channel, exclusive=True)
    exchange = await peer.lane_exchange(channel, queue)
    raw = properties(text("h", b"\xff"), message_id=b"same")
    keys = [queue, "gone-1", queue, "gone-2", "gone-1"]
    for key in keys:
        peer.link.publish(channel, exchange=exchange, routing_key=key, properties=raw, body=key.encode())

    await eventually(lambda: any(event.tag == 5 for event in peer.of(Confirmed)))
    returned = peer.of(Returned)
    assert returned == [
        Returned(channel, 312, "NO_ROUTE", b"dispatch.lane", key, raw, key)
        for key in (b"gone-1", b"gone-2", b"gone-1")
    ]
    answered = [type(event) for event in peer.events]
    assert len(answered) - 1 - answered[::-1].index(Confirmed) > peer.events.index(returned[-1])


async def test_an_unroutable_publish_that_is_not_mandatory_is_only_confirmed(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    peer.put(channel, "nowhere", mandatory=False)
    assert await peer.until(Confirmed) == [Confirmed(channel, 1, False, False)]
    assert peer.of(Returned) == []


async def test_a_full_queue_nacks(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = await peer.queue(channel, "full", arguments=limits)
    for _ in range(3):
        peer.put(channel, queue)
    await eventually(lambda: any(event.nacked for event in peer.of(Confirmed)))
    nacked = next(event for event in peer.of(Confirmed) if event.nacked)
    assert nacked.tag in (2, 3)


async def test_a_deleted_queue_cancels_its_consumer(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    queue = await peer.queue(channel, "doomed")
    await peer.consume(channel, queue, "watch")
    await peer.link.call(channel, Queue.Delete(queue=queue))
    assert await peer.until(ConsumerCancelled) == [ConsumerCancelled(channel, b"watch")]


async def test_an_error_closes_its_channel_and_no_other(connect: Connect) -> None:
    peer = await connect()
    good, bad = await peer.channel(), await peer.channel()
    queue = await peer.queue(good, exclusive=True)
    waiting = [peer.link.call(bad, Queue.Declare(queue=name, passive=True)) for name in ("missing", queue)]
    for failed in waiting:
        with pytest.raises(ChannelRefused, match="404 NOT_FOUND - no queue 'missing'") as caught:
            await failed
        assert caught.value.code == 404
    (closed,) = await peer.until(ChannelClosed)
    assert (closed.channel, closed.code, closed.class_id, closed.method_id) == (bad, 404, 50, 10)
    for use in (lambda: peer.put(bad, queue), lambda: peer.link.ack(bad, 1)):
        with pytest.raises(ChannelRefused, match="404 NOT_FOUND"):
            use()
    peer.put(good, queue, b"still works")
    await peer.consume(good, queue)
    assert (await peer.deliveries(1))[0].body == b"still works"
    assert await peer.link.open_channel() == bad


async def test_a_channel_closed_by_us_is_over_and_its_number_free(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel(prefetch=10)
    queue = await peer.queue(channel, "q")
    await peer.consume(channel, queue)
    for _ in range(100):
        peer.put(channel, queue)
    await peer.deliveries(1)
    closing = peer.link.call(channel, Channel.Close(200, "done", 0, 0))
    with pytest.raises(ChannelRefused, match="closed by us"):
        peer.link.ack(channel, 1)
    await closing
    count = len(peer.events)
    assert await peer.channel(prefetch=10) == channel
    await peer.consume(channel, queue)
    again = await eventually(lambda: [event for event in peer.events[count:] if type(event) is Delivery])
    assert (again[0].tag, again[0].redelivered) == (1, True)
    assert peer.of(ChannelClosed) == []


async def test_closing_a_channel_that_the_broker_closes_too(connect: Connect) -> None:
    peer = await connect()
    for _ in range(20):
        channel = await peer.link.open_channel()
        refused = peer.link.call(channel, Queue.Declare(queue="missing", passive=True))
        closing = peer.link.call(channel, Channel.Close(200, "done", 0, 0))
        with pytest.raises(ChannelRefused, match="404 NOT_FOUND"):
            await refused
        await closing
        assert await peer.channel() == channel
        await peer.link.call(channel, Channel.Close(200, "done", 0, 0))


async def test_a_publish_to_a_missing_exchange_closes_the_channel_by_an_event(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    peer.link.publish(channel, exchange="missing", routing_key="", properties=b"\0\0", body=b"")
    (closed,) = await peer.until(ChannelClosed)
    assert (closed.code, closed.class_id, closed.method_id) == (404, 60, 40)


async def test_calls_may_be_pipelined_and_keep_their_order_with_publishes(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    queue = await peer.queue(channel, exclusive=True)
    counts = []
    for _ in range(5):
        counts.append(peer.link.call(channel, Queue.Purge(queue=queue)))
        peer.put(channel, queue)
    removed = [answer.message_count for answer in await asyncio.gather(*counts)]
    assert removed == [0, 1, 1, 1, 1]


async def test_a_cancelled_caller_does_not_disturb_the_next(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    peer.link.call(channel, Queue.Declare(queue="a", durable=True)).cancel()
    answer = await peer.link.call(channel, Queue.Declare(queue="b", durable=True))
    assert answer.queue == "b"


async def test_basic_get(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    queue = await peer.queue(channel, exclusive=True)
    assert isinstance(await peer.link.call(channel, Basic.Get(queue=queue)), Basic.GetEmpty)
    for body in (b"1", b"2" * 200_000):
        peer.put(channel, queue, body)
    (got, more) = await asyncio.gather(*(peer.link.call(channel, Basic.Get(queue=queue)) for _ in range(2)))
    assert got == Fetched(1, False, b"", queue.encode(), 1, b"\x00\x00", b"1")
    assert (more.tag, more.message_count, more.body) == (2, 0, b"2" * 200_000)


async def test_a_rejected_delivery_comes_back(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    queue = await peer.queue(channel, exclusive=True)
    await peer.consume(channel, queue)
    peer.put(channel, queue)
    await peer.deliveries(1)
    peer.link.send(channel, Basic.Nack(delivery_tag=1, requeue=True))
    assert [(delivery.tag, delivery.redelivered) for delivery in await peer.deliveries(2)] == [
        (1, False),
        (2, True),
    ]


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 16 * 1024 * 1024])
async def test_bodies_of_any_size(connect: Connect, size: int) -> None:
    peer = await connect()
    channel = await peer.channel()
    queue = await peer.queue(channel, exclusive=True)
    await peer.consume(channel, queue)
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    peer.put(channel, queue, body)
    peer.put(channel, queue, b"next")
    first, second = await peer.deliveries(2)
    assert first.body == body
    assert second.body == b"next"


async def test_queue_names_that_pamqp_refuses(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    for name in ("größe|x <1>", "orders*#", "amq-less\x7f"):
        with contextlib.suppress(ValueError):
            Queue.Declare(queue=name)
            pytest.fail("pamqp takes it now: QueueDeclare and BasicConsume can go")
        await peer.link.call(channel, QueueDeclare(queue=name, exclusive=True))
        answer = await peer.link.call(channel, QueueDeclare(queue=name, passive=True))
        assert answer.queue == name
        await peer.link.call(channel, BasicConsume(queue=name, consumer_tag=name))
        peer.put(channel, name)
    tags = [delivery.consumer_tag.decode() for delivery in await peer.deliveries(3)]
    assert tags == ["größe|x <1>", "orders*#", "amq-less\x7f"]


class Counted:
    """A transport, and how many bytes were given to it."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_a_flush_does_not_wait_for_the_loop(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    queue = await peer.queue(channel, exclusive=True)
    counted = Counted(peer.link._transport)
    peer.link._transport = cast(Any, counted)
    peer.put(channel, queue)
    assert not counted.written
    peer.link.flush()
    assert counted.written
    await peer.consume(channel, queue)
    await peer.deliveries(1)


async def test_many_events_of_one_read_come_at_once(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    queue = await peer.queue(channel, exclusive=True)
    for _ in range(1_000):
        peer.put(channel, queue, mandatory=False)
    await peer.consume(channel, queue)
    await peer.deliveries(1_000)
    assert max(peer.reads) > 10


# --- ends -----------------------------------------------------------------------------------------------


async def test_our_own_close_sends_what_was_written_and_says_200(connect: Connect) -> None:
    peer, other = await connect(), await connect()
    channel, theirs = await peer.channel(), await other.channel()
    queue = await peer.queue(channel, "q")
    waiting = peer.link.call(channel, Queue.Declare(queue=queue, durable=True))
    for _ in range(100):
        peer.put(channel, queue)
    await peer.link.close()
    assert peer.link.closed.result() == ConnectionClosed(200, "the connection was closed by us")
    assert closes(peer) == [peer.link.closed.result()] == peer.events[-1:]
    with pytest.raises(BrokerUnavailable, match="closed by us"):
        await waiting
    with pytest.raises(BrokerUnavailable, match="closed by us"):
        peer.put(channel, queue)
    await peer.link.close()
    await other.consume(theirs, queue)
    await other.deliveries(100)


async def test_abort_is_reported_and_fails_what_waits(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    waiting = peer.link.call(channel, Queue.Declare(queue="q"))
    peer.link.abort()
    end = await peer.link.closed
    assert end.code == 0
    assert closes(peer) == [end]
    with pytest.raises(BrokerUnavailable):
        await waiting
    for use in (lambda: peer.put(channel, "q"), lambda: peer.link.call(channel, Confirm.Select())):
        with pytest.raises(BrokerUnavailable):
            use()
    with pytest.raises(BrokerUnavailable):
        await peer.link.open_channel()


async def test_the_brokers_close_is_the_last_event(connect: Connect, vhost: Vhost) -> None:
    peer = await connect()
    channel = await peer.channel()
    queue = await peer.queue(channel, exclusive=True)
    await peer.consume(channel, queue)
    # The statistics that this list is made of are seconds old.
    listed = await eventually(lambda: asyncio.to_thread(vhost.management, f"vhosts/{vhost.name}/connections"))
    peer.put(channel, queue)
    await asyncio.to_thread(vhost.management, f"connections/{quote(listed[0]['name'])}", "DELETE")
    end = await peer.link.closed
    assert end.code == 320
    assert end.text.startswith("CONNECTION_FORCED - ")
    assert peer.events[-1] == end
    assert len(closes(peer)) == 1


async def test_nothing_is_left_over(connect: Connect) -> None:
    # Warnings are errors: an unclosed transport or a future nobody read would fail here.
    peer = await connect()
    await peer.channel()
    await peer.link.close()
    del peer
    gc.collect()
