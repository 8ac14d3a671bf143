"""What the simulator believes of RabbitMQ is what RabbitMQ does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from pamqp.commands import Basic, Channel, Exchange, Queue

from dispatcher.amqp.events import (
    ChannelClosed,
    Confirmed,
    ConnectionClosed,
    ConsumerCancelled,
    Delivery,
    Fetched,
    Returned,
)
from dispatcher.client.properties import read
from dispatcher.errors import BrokerUnavailable, ChannelRefused
from dispatcher.service.queue_kinds import has_priorities, kind_of_queue
from tests.conftest import Vhost
from tests.sim.contract.acts import (
    CLASSIC,
    PERSISTENT,
    QUORUM,
    confirmed,
    confirming,
    consume,
    counts,
    fill,
    free,
    got,
    refusal,
)
from tests.sim.contract.sides import Connect, Recorded, run_on_modelled_broker, run_on_rabbitmq
from tests.waiting import eventually

SEEDS = range(5)
#: Enough for what happens now and then to happen.
TRIES = 40


# --- scripts ---


async def unacked_come_back_in_order_with_the_flag(connect: Connect, kind: dict[str, str]) -> Any:
    first = await connect()
    await fill(first, "in", kind, 8)
    reader = await connect()
    channel = await consume(reader, "in", 5)
    await eventually(lambda: len(got(reader)) == 5)
    reader.link.ack(channel, 2, False)
    await eventually(lambda: len(got(reader)) == 6)
    reader.link.abort()
    second = await connect()
    await eventually(lambda: free(second, "in"))
    await consume(second, "in", 100)
    await eventually(lambda: len(got(second)) == 7)
    return got(second)


async def multiple_acks_and_a_passive_declare(connect: Connect, kind: dict[str, str]) -> Any:
    peer = await connect()
    await fill(peer, "in", kind, 20)
    channel = await consume(peer, "in", 5)
    await eventually(lambda: len(got(peer)) == 5)
    before = await counts(peer, "in")
    peer.link.ack(channel, 3, True)
    await eventually(lambda: len(got(peer)) == 8)
    return before, await counts(peer, "in")


async def a_second_exclusive_consumer(connect: Connect, kind: dict[str, str]) -> Any:
    holder, rival = await connect(), await connect()
    await fill(holder, "in", kind, 0)
    await consume(holder, "in", 5, exclusive=True)
    exclusively = await refusal(rival, Basic.Consume(queue="in", consumer_tag="r", exclusive=True))
    plainly = await refusal(rival, Basic.Consume(queue="in", consumer_tag="p"))
    return exclusively, plainly


async def channel_close_requeues(connect: Connect, kind: dict[str, str]) -> Any:
    peer = await connect()
    await fill(peer, "in", kind, 3)
    channel = await consume(peer, "in", 2)
    await eventually(lambda: len(got(peer)) == 2)
    await peer.link.call(channel, Channel.Close(200, "enough", 0, 0))
    await eventually(lambda: free(peer, "in"))
    peer.events.clear()
    await consume(peer, "in", 10, "again")
    await eventually(lambda: len(got(peer)) == 3)
    return got(peer)


async def a_declare_with_another_type(connect: Connect, kind: dict[str, str]) -> Any:
    peer = await connect()
    await fill(peer, "in", kind, 0)
    channel = await peer.link.open_channel()
    try:
        await peer.link.call(channel, Queue.Declare(queue="in", durable=True, arguments=QUORUM))
    except ChannelRefused as refused:
        return refused.code, "'x-queue-type'" in refused.text
    return 0, False


async def what_kind_of_queue_it_is(connect: Connect, kind: dict[str, str]) -> Any:
    peer = await connect()
    await fill(peer, "in", kind, 1)
    found = await kind_of_queue(peer.link, "in")
    return found, found == "classic" and await has_priorities(peer.link, "in"), await counts(peer, "in")


async def a_deleted_queue_cancels_its_consumers(connect: Connect, kind: dict[str, str]) -> Any:
    peer, other = await connect(), await connect()
    await fill(peer, "in", kind, 3)
    channel = await consume(peer, "in", 1)
    await eventually(lambda: len(got(peer)) == 1)
    await other.link.call(await other.link.open_channel(), Queue.Delete(queue="in"))
    await eventually(lambda: bool(peer.of(ConsumerCancelled)))
    return peer.of(ConsumerCancelled) == [ConsumerCancelled(channel, b"c")], got(peer)


async def a_quorum_queue_counts_deliveries(connect: Connect, kind: dict[str, str]) -> Any:
    """The number is in a header of the message; a classic queue adds nothing."""
    first = await connect()
    await fill(first, "in", kind, 2)
    seen = []
    for _ in range(3):
        reader = await connect()
        await eventually(lambda peer=reader: free(peer, "in"))
        await consume(reader, "in", 1)
        await eventually(lambda peer=reader: len(got(peer)) == 1)
        seen.append(_delivery_count(reader.of(Delivery)[0].properties))
        reader.link.abort()
    return seen


def _delivery_count(properties: bytes) -> int | None:
    """`x-delivery-count`, whatever kind of integer it is."""
    count = read(properties)[1].get("x-delivery-count")
    return None if count is None else int(count)


async def what_is_rejected_goes_where_its_queue_says(connect: Connect, kind: dict[str, str]) -> Any:
    peer = await connect()
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await fill(peer, "dead", CLASSIC, 0)
    await fill(peer, "in", {**kind, **dead}, 3)
    channel = await consume(peer, "in", 2)
    await eventually(lambda: len(got(peer)) == 2)
    peer.link.send(channel, Basic.Nack(delivery_tag=1, requeue=False))
    await eventually(lambda: len(got(peer)) == 3)
    reader = await connect()
    await consume(reader, "dead", 1)
    await eventually(lambda: len(got(reader)) == 1)
    headers = read(reader.of(Delivery)[0].properties)[1]
    words = [headers.get(f"x-first-death-{word}") for word in ("queue", "reason")]
    return got(peer), got(reader), words


async def two_consumers_take_turns_while_they_have_room(connect: Connect, kind: dict[str, str]) -> Any:
    peer = await connect()
    await fill(peer, "in", kind, 0)
    channels = [await consume(peer, "in", 2, tag) for tag in ("one", "two")]
    publisher = await confirming(peer)
    for number in range(6):
        peer.link.publish(
            publisher, exchange="", routing_key="in", properties=PERSISTENT, body=b"%d" % number
        )
    await eventually(lambda: len(got(peer)) == 4)
    return [len([d for d in peer.of(Delivery) if d.channel == channel]) for channel in channels]


async def what_was_asked_for_comes_back_before_the_rest(connect: Connect, kind: dict[str, str]) -> Any:
    """A quorum queue gives it back in no order."""
    peer, other = await connect(), await connect()
    await fill(peer, "in", kind, 60)
    reader = await connect()
    channel = await reader.link.open_channel()
    for _ in range(50):
        await reader.link.call(channel, Basic.Get(queue="in"))
    reader.link.abort()

    async def are_back() -> bool:
        return (await counts(other, "in"))[0] == 60

    await eventually(are_back)
    channel = await other.link.open_channel()
    fetched = [await other.link.call(channel, Basic.Get(queue="in")) for _ in range(60)]
    bodies = [int(message.body) for message in fetched]
    again = [int(message.body) for message in fetched if message.redelivered]
    return again == sorted(again), sorted(again) == list(range(50)), bodies[50:]


async def a_delete_of_what_is_empty(connect: Connect, kind: dict[str, str]) -> Any:
    """A quorum queue knows no such condition: it ends the connection."""
    peer = await connect()
    channel = await fill(peer, "in", kind, 0)
    with suppress(BrokerUnavailable):
        await peer.link.call(channel, Queue.Delete(queue="in", if_empty=True))
    return [event.code for event in peer.of(ConnectionClosed)]


EACH_KIND = [
    what_was_asked_for_comes_back_before_the_rest,
    a_delete_of_what_is_empty,
    a_deleted_queue_cancels_its_consumers,
    a_quorum_queue_counts_deliveries,
    two_consumers_take_turns_while_they_have_room,
    what_is_rejected_goes_where_its_queue_says,
    unacked_come_back_in_order_with_the_flag,
    multiple_acks_and_a_passive_declare,
    a_second_exclusive_consumer,
    channel_close_requeues,
    a_declare_with_another_type,
    what_kind_of_queue_it_is,
]


async def returns_come_before_confirms(connect: Connect) -> Any:
    peer = await connect()
    channel = await fill(peer, "there", CLASSIC, 0)
    for key in ("nowhere", "there", "nowhere"):
        peer.link.publish(channel, exchange="", routing_key=key, properties=PERSISTENT, body=b"0")
    await eventually(lambda: confirmed(peer, channel) == {1, 2, 3})
    order, answered = [], 0
    for event in peer.events:
        if isinstance(event, Returned):
            order.append(event.routing_key)
        elif isinstance(event, Confirmed):
            answered = max(answered, event.tag)
            assert len(order) >= (2 if answered == 3 else 1), "a confirm came before its return"
    return order, await counts(peer, "there")


async def an_exclusive_queue_ends_with_its_connection(connect: Connect) -> Any:
    owner, other = await connect(), await connect()
    publisher = await confirming(other)
    await other.link.call(publisher, Exchange.Declare(exchange="lane", exchange_type="direct", durable=True))
    channel = await owner.link.open_channel()
    declare = Queue.Declare(queue="", exclusive=True, auto_delete=True)
    queue = str((await owner.link.call(channel, declare)).queue)
    await owner.link.call(channel, Queue.Bind(queue=queue, exchange="lane", routing_key=queue))
    await owner.link.call(channel, Basic.Consume(queue=queue, consumer_tag="c", no_ack=True))
    other.link.publish(publisher, exchange="lane", routing_key=queue, properties=PERSISTENT, body=b"7")
    await eventually(lambda: got(owner) == [(7, False)])
    locked = await refusal(other, Queue.Declare(queue=queue, passive=True))
    owner.link.abort()

    def publish_again() -> bool:
        other.link.publish(publisher, exchange="lane", routing_key=queue, properties=PERSISTENT, body=b"8")
        return bool(other.of(Returned))

    await eventually(publish_again)
    gone = await refusal(other, Queue.Declare(queue=queue, passive=True))
    return locked, gone, other.of(Returned)[0].code


async def bad_requests_close_the_channel_only(connect: Connect) -> Any:
    peer = await connect()
    await fill(peer, "in", CLASSIC, 1)
    channel = await consume(peer, "in", 5)
    await eventually(lambda: len(got(peer)) == 1)
    peer.link.ack(channel, 99, False)
    await eventually(lambda: bool(peer.of(ChannelClosed)))
    publisher = await confirming(peer)
    peer.link.publish(publisher, exchange="missing", routing_key="", properties=PERSISTENT, body=b"")
    await eventually(lambda: len(peer.of(ChannelClosed)) == 2)
    missing = await refusal(peer, Queue.Declare(queue="missing", passive=True))
    no_exchange = await refusal(peer, Exchange.Declare(exchange="missing", passive=True))
    return [closed.code for closed in peer.of(ChannelClosed)][:2], missing, no_exchange


async def the_oldest_go_when_a_queue_is_full(connect: Connect) -> Any:
    peer = await connect()
    await fill(peer, "short", {"x-queue-type": "classic", "x-max-length": 2}, 4)  # type: ignore[dict-item]
    await consume(peer, "short", 10)
    await eventually(lambda: len(got(peer)) == 2)
    return got(peer)


async def a_cancelled_consumer_keeps_its_unacked(connect: Connect) -> Any:
    peer = await connect()
    await fill(peer, "in", CLASSIC, 4)
    channel = await consume(peer, "in", 2)
    await eventually(lambda: len(got(peer)) == 2)
    await peer.link.call(channel, Basic.Cancel(consumer_tag="c"))
    before = await counts(peer, "in")
    await peer.link.call(channel, Basic.Consume(queue="in", consumer_tag="c"))
    await eventually(lambda: len(got(peer)) >= 3)
    return before, got(peer)[:3]


async def a_queue_may_answer_after_its_channel(connect: Connect) -> Any:
    """A queue answers a consume, its channel a declare: of both at a time the declare may be answered first,
    which a link takes for an error of the protocol. Not so if one is asked for after the other."""
    await fill(await connect(), "in", CLASSIC, 1)
    ways: dict[str, Callable[[Recorded, int], Awaitable[Any]]] = {"at once": _both, "in turn": _in_turn}
    ends: dict[str, set[int]] = {way: set() for way in ways}
    for way, ask in ways.items():
        for _ in range(TRIES):
            peer = await connect()
            with suppress(BrokerUnavailable):
                await ask(peer, await peer.link.open_channel())
            ends[way] |= {end.code for end in peer.of(ConnectionClosed)}
            await peer.link.close()
    return ends


CONSUME = Basic.Consume(queue="in", consumer_tag="c")
LOOK = Queue.Declare(queue="in", passive=True)


async def _both(peer: Recorded, channel: int) -> None:
    await asyncio.gather(*(peer.link.call(channel, method) for method in (CONSUME, LOOK)))


async def _in_turn(peer: Recorded, channel: int) -> None:
    for method in (CONSUME, LOOK):
        await peer.link.call(channel, method)


async def what_is_fetched_and_given_back_stays_in_its_place(connect: Connect) -> Any:
    peer = await connect()
    await fill(peer, "park", CLASSIC, 5)
    channel = await peer.link.open_channel()
    first = await _fetched(peer, channel, "park", 3)
    for tag in (2, 3):
        peer.link.send(channel, Basic.Nack(delivery_tag=tag, requeue=True))
    second = await _fetched(peer, channel, "park", 7)
    peer.link.abort()
    other = await connect()
    await eventually(lambda: _all_ready(other, "park", 5))
    return first, second, await _fetched(other, await other.link.open_channel(), "park", 6)


async def _fetched(peer: Recorded, channel: int, queue: str, count: int) -> list[Any]:
    """(tag, body, flag, how many are left) of each of so many requests under way at once; None: empty."""
    answers = await asyncio.gather(*(peer.link.call(channel, Basic.Get(queue=queue)) for _ in range(count)))
    return [
        (answer.tag, answer.body, answer.redelivered, answer.message_count)
        if isinstance(answer, Fetched)
        else None
        for answer in answers
    ]


async def _all_ready(peer: Recorded, queue: str, count: int) -> bool:
    return (await counts(peer, queue))[0] == count


async def a_queue_that_has_something_is_not_deleted_when_that_is_asked(connect: Connect) -> Any:
    peer = await connect()
    await fill(peer, "park", CLASSIC, 2)
    delete = Queue.Delete(queue="park", if_empty=True)
    full = await refusal(peer, delete)
    channel = await peer.link.open_channel()
    for answer in await _fetched(peer, channel, "park", 2):
        peer.link.ack(channel, answer[0], False)
    return full, await refusal(peer, delete), await refusal(peer, Basic.Get(queue="park"))


ONCE = [
    a_queue_may_answer_after_its_channel,
    what_is_fetched_and_given_back_stays_in_its_place,
    a_queue_that_has_something_is_not_deleted_when_that_is_asked,
    returns_come_before_confirms,
    an_exclusive_queue_ends_with_its_connection,
    bad_requests_close_the_channel_only,
    the_oldest_go_when_a_queue_is_full,
    a_cancelled_consumer_keeps_its_unacked,
]

# --- both sides ---


async def _agree(script: Callable[[Connect], Awaitable[Any]], url: str) -> None:
    real = await run_on_rabbitmq(script, url)
    assert {str(real)} == {str(run_on_modelled_broker(script, seed)) for seed in SEEDS}


@pytest.mark.parametrize("script", ONCE, ids=lambda script: script.__name__)
async def test_the_model_does_what_rabbitmq_does(script: Any, vhost: Vhost) -> None:
    await _agree(script, vhost.amqp_url)


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM], ids=["classic", "quorum"])
@pytest.mark.parametrize("script", EACH_KIND, ids=lambda script: script.__name__)
async def test_the_modelled_queues_do_what_rabbitmqs_do(
    script: Any, kind: dict[str, str], vhost: Vhost
) -> None:
    await _agree(lambda connect: script(connect, kind), vhost.amqp_url)
