"""Both producers against a real broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from dispatcher.client import BlockingGroupProducer, GroupProducer, Properties
from dispatcher.errors import ConfigurationError, SendFailed
from tests.client.subjects import AsyncProducer, MakeProducer
from tests.client.tcp_proxy import TcpProxy
from tests.client.test_consumer_losses import with_login
from tests.conftest import Vhost
from tests.waiting import eventually

QUEUE = "orders.in"


@pytest.fixture
async def channel(vhost: Vhost) -> AsyncIterator[AbstractChannel]:
    connection = await aio_pika.connect(vhost.amqp_url)
    async with connection:
        opened = await connection.channel()
        await opened.declare_queue(QUEUE, durable=True)
        yield opened


async def received(channel: AbstractChannel, count: int) -> list[AbstractIncomingMessage]:
    """The next `count` messages of the queue."""
    queue = await channel.get_queue(QUEUE)
    messages: list[AbstractIncomingMessage] = []
    while len(messages) < count:
        messages.append(await eventually(lambda: queue.get(no_ack=True, fail=False), what="a message"))
    return messages


async def test_a_message_is_persistent_and_has_an_id_and_a_group(
    channel: AbstractChannel, make_producer: MakeProducer
) -> None:
    producer = await make_producer(QUEUE)
    message_id = await producer.send(
        b"body", "g", headers={"double": 1.1}, properties=Properties(content_type="text/plain", app_id="shop")
    )
    (message,) = await received(channel, 1)
    assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
    assert (message.message_id, message.content_type, message.app_id) == (message_id, "text/plain", "shop")
    assert message.headers == {"double": 1.1, "x-group-id": "g"}
    assert message.body == b"body"


async def test_each_message_has_its_own_id(channel: AbstractChannel, make_producer: MakeProducer) -> None:
    producer = await make_producer(QUEUE)
    ids = await asyncio.gather(*[producer.submit(b"same", "g") for _ in range(50)])
    assert len(set(ids)) == 50
    assert [message.message_id for message in await received(channel, 50)] == ids


@pytest.mark.seed("R3", "R5")
async def test_messages_are_in_the_queue_in_the_order_of_the_calls(
    channel: AbstractChannel, make_producer: MakeProducer
) -> None:
    producer = await make_producer(QUEUE)
    await asyncio.gather(*[producer.submit(str(n).encode(), f"g{n % 7}") for n in range(200)])
    bodies = [int(message.body) for message in await received(channel, 200)]
    for group in range(7):
        assert [n for n in bodies if n % 7 == group] == list(range(group, 200, 7))


@pytest.mark.seed("R1", "A6")
@pytest.mark.parametrize(
    ("options", "group", "header"),
    [
        ({}, None, None),
        ({"group": "fixed"}, None, "fixed"),
        ({"group": "fixed"}, "own", "own"),
        ({}, 7, 7),
        ({}, b"\xff", bytearray(b"\xff")),
    ],
)
async def test_the_group_of_a_message(
    channel: AbstractChannel, make_producer: MakeProducer, options: Any, group: Any, header: Any
) -> None:
    producer = await make_producer(QUEUE, **options)
    await producer.send(b"", group)
    (message,) = await received(channel, 1)
    assert message.headers.get("x-group-id") == header


@pytest.mark.seed("A5")
async def test_an_automatic_group_is_one_per_producer(
    channel: AbstractChannel, make_producer: MakeProducer
) -> None:
    one, two = await make_producer(QUEUE, auto_group=True), await make_producer(QUEUE, auto_group=True)
    for producer in (one, one, two):
        await producer.send(b"")
    groups = [message.headers["x-group-id"] for message in await received(channel, 3)]
    assert groups[0] == groups[1] != groups[2]
    assert groups[0] == one.producer.group


@pytest.mark.seed("A7")
async def test_a_group_is_closed_by_a_negative_sequence(
    channel: AbstractChannel, make_producer: MakeProducer
) -> None:
    producer = await make_producer(QUEUE)
    await producer.send(b"last", "g", close=True)
    await producer.close_group("h")
    last, empty = await received(channel, 2)
    assert last.headers == {"x-group-id": "g", "x-group-seq": -1}
    assert (empty.headers, empty.body) == ({"x-group-id": "h", "x-group-seq": -1}, b"")


async def test_headers_have_the_lanes_names(channel: AbstractChannel, make_producer: MakeProducer) -> None:
    producer = await make_producer(QUEUE, group_header="JMSXGroupID", sequence_header="JMSXGroupSeq")
    await producer.send(b"", "g", close=True)
    (message,) = await received(channel, 1)
    assert message.headers == {"JMSXGroupID": "g", "JMSXGroupSeq": -1}


async def test_an_exchange_with_a_routing_key_of_each_message(
    channel: AbstractChannel, make_producer: MakeProducer
) -> None:
    queue = await channel.get_queue(QUEUE)
    await channel.declare_exchange("shop", "topic")
    await queue.bind("shop", "orders.*")
    producer = await make_producer(exchange="shop", routing_key="orders.new")
    await producer.send(b"1", "g")
    await producer.send(b"2", "g", routing_key="orders.changed")
    assert [m.routing_key for m in await received(channel, 2)] == ["orders.new", "orders.changed"]


# --- failures ---


async def test_what_no_queue_takes_fails_and_so_does_what_waits_behind_it(
    channel: AbstractChannel, make_producer: MakeProducer
) -> None:
    await channel.declare_exchange("shop", "direct")
    await (await channel.get_queue(QUEUE)).bind("shop", "known")
    producer = await make_producer(exchange="shop", routing_key="known")
    sends = [
        producer.submit(b"1", "g"),
        producer.submit(b"2", "g", routing_key="unknown"),
        producer.submit(b"3", "g"),
        producer.submit(b"4", "other"),
    ]
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert [isinstance(result, SendFailed) for result in results] == [False, True, True, False]
    assert "NO_ROUTE" in str(results[1])
    await producer.send(b"5", "g")
    assert sorted(m.body for m in await received(channel, 3)) == [b"1", b"4", b"5"]


async def test_a_full_queue_refuses(channel: AbstractChannel, make_producer: MakeProducer) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    await channel.declare_queue("small", durable=True, arguments=arguments)
    producer = await make_producer("small")
    await producer.send(b"1", "g")
    with pytest.raises(SendFailed, match="nack"):
        await producer.send(b"2", "g")


async def test_a_missing_exchange_fails_the_send_and_not_the_producer(
    channel: AbstractChannel, make_producer: MakeProducer
) -> None:
    producer = await make_producer(exchange="later")
    with pytest.raises(SendFailed, match="NOT_FOUND"):
        await producer.send(b"1", "g")
    await channel.declare_exchange("later", "fanout")
    await (await channel.get_queue(QUEUE)).bind("later", "")
    await producer.send(b"2", "g")
    assert [m.body for m in await received(channel, 1)] == [b"2"]


@pytest.mark.seed("R3", "R5")
async def test_sends_survive_a_lost_connection_in_order(
    channel: AbstractChannel, proxy: TcpProxy, make_producer: MakeProducer
) -> None:
    producer = await make_producer(QUEUE, url=proxy.url)
    sends = [producer.submit(str(n).encode(), f"g{n % 3}") for n in range(300)]
    for confirmed in (20, 80):
        await eventually(lambda confirmed=confirmed: sum(send.done() for send in sends) >= confirmed)
        proxy.cut()
    ids = await asyncio.gather(*sends)
    queue = await channel.declare_queue(QUEUE, passive=True)
    stored = await received(channel, queue.declaration_result.message_count or 0)
    first: dict[str, int] = {}
    for place, message in enumerate(stored):
        first.setdefault(str(message.message_id), place)
    assert set(first) == set(ids)
    for group in range(3):
        places = [first[ids[n]] for n in range(group, 300, 3)]
        assert places == sorted(places)


async def test_sends_wait_for_a_broker_that_is_not_there_yet(
    channel: AbstractChannel, proxy: TcpProxy, make_producer: MakeProducer
) -> None:
    proxy.refuses = True
    producer = await make_producer(QUEUE, url=proxy.url)
    sends = [producer.submit(str(n).encode(), "g") for n in range(3)]
    await eventually(lambda: proxy.refused >= 2)
    proxy.refuses = False
    await asyncio.gather(*sends)
    assert [m.body for m in await received(channel, 3)] == [b"0", b"1", b"2"]


async def test_closing_fails_what_is_not_confirmed(proxy: TcpProxy, make_producer: MakeProducer) -> None:
    proxy.refuses = True
    producer = await make_producer(QUEUE, url=proxy.url)
    send = producer.submit(b"1", "g")
    await producer.close()
    with pytest.raises(SendFailed, match="the producer was closed"):
        await send
    with pytest.raises(RuntimeError, match="not open"):
        producer.submit(b"2", "g")


async def test_flush_waits_for_every_confirm(channel: AbstractChannel, make_producer: MakeProducer) -> None:
    producer = await make_producer(QUEUE)
    sends = [producer.submit(b"", "g") for _ in range(20)]
    await producer.flush()
    await eventually(lambda: all(send.done() for send in sends))


async def test_flush_raises_what_failed_and_was_not_looked_at(
    channel: AbstractChannel, make_producer: MakeProducer
) -> None:
    producer = await make_producer("no.such.queue")
    producer.producer.submit(b"1")
    with pytest.raises(SendFailed, match=r"no\.such\.queue"):
        await producer.flush()
    await producer.flush()  # it was told
    for group in ("a", "b"):
        producer.producer.submit(b"2", group)
    with pytest.raises(SendFailed, match="2 messages failed"):
        await producer.flush()
    with pytest.raises(SendFailed):
        await producer.send(b"3")
    with pytest.raises(SendFailed):
        await producer.submit(b"4")
    await producer.flush()  # whoever sent them knows


async def test_leaving_raises_what_failed(vhost: Vhost) -> None:
    with pytest.raises(SendFailed):
        async with GroupProducer(vhost.amqp_url, "no.such.queue") as producer:
            producer.submit(b"1")

    def leave() -> None:
        with BlockingGroupProducer(vhost.amqp_url, "no.such.queue") as producer:
            producer.submit(b"1")

    with pytest.raises(SendFailed):
        await asyncio.to_thread(leave)


async def test_the_error_names_the_exchange_that_has_no_queue_for_it(
    channel: AbstractChannel, make_producer: MakeProducer
) -> None:
    await channel.declare_exchange("shop", "direct")
    producer = await make_producer(exchange="shop", routing_key="unknown")
    with pytest.raises(SendFailed, match="'shop' for 'unknown'"):
        await producer.send(b"1")


async def test_a_producer_gives_up_when_it_was_told_so(
    channel: AbstractChannel, proxy: TcpProxy, make_producer: MakeProducer
) -> None:
    producer = await make_producer(QUEUE, url=proxy.url, give_up_after_s=0.5)
    await producer.send(b"1", "g")
    proxy.refuses = True
    proxy.cut()
    with pytest.raises(SendFailed, match=r"0\.5 s"):
        await producer.send(b"2", "g")
    with pytest.raises(SendFailed, match=r"0\.5 s"):
        await producer.send(b"3")
    proxy.refuses = False
    await eventually(lambda: len(proxy.connections) >= 2, what="the next connection")

    async def sent() -> bool:
        with contextlib.suppress(SendFailed):
            return bool(await producer.send(b"4", "g"))
        return False

    await eventually(sent, what="a message over the next connection")
    assert [message.body for message in await received(channel, 2)] == [b"1", b"4"]


async def test_a_producer_gives_up_that_was_never_connected(
    proxy: TcpProxy, make_producer: MakeProducer
) -> None:
    proxy.refuses = True
    producer = await make_producer(QUEUE, url=proxy.url, give_up_after_s=0.2)
    with pytest.raises(SendFailed, match=r"0\.2 s"):
        await producer.send(b"1", "g")


@pytest.mark.parametrize("body", [5, {}, {1: 2}, "text", [1, 2], None])
async def test_a_body_is_bytes(channel: AbstractChannel, make_producer: MakeProducer, body: Any) -> None:
    producer = await make_producer(QUEUE)
    with pytest.raises(TypeError, match=r"^body: "):
        await producer.send(body)
    for number, good in enumerate((b"1", bytearray(b"2"), memoryview(b"3"))):
        await producer.send(good, f"g{number}")
    assert sorted(message.body for message in await received(channel, 3)) == [b"1", b"2", b"3"]


async def test_a_wrong_password_fails_every_send(vhost: Vhost, make_producer: MakeProducer) -> None:
    producer = await make_producer(QUEUE, url=with_login(vhost.amqp_url, "guest", "wrong"))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="RabbitMQ refuses this producer"):
            await producer.send(b"1", "g")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "queue: either it or exchange must be given"),
        ({"queue": "q", "exchange": "e"}, "queue: either it or exchange must be given"),
        ({"queue": "q", "routing_key": "k"}, "routing_key: goes with exchange"),
        ({"queue": "q", "group": "g", "auto_group": True}, "auto_group: makes a group of its own"),
        ({"queue": "q", "group": ""}, "group: must not be empty"),
        ({"queue": "q", "give_up_after_s": 0}, "give_up_after_s: must be positive"),
    ],
)
def test_arguments_that_can_not_work_are_named(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        AsyncProducer("amqp://localhost", **arguments)


async def test_what_can_not_be_sent_is_named(channel: AbstractChannel, make_producer: MakeProducer) -> None:
    producer = await make_producer(QUEUE)
    with pytest.raises(ValueError, match="group must not be empty"):
        producer.submit(b"", "")
    with pytest.raises(ValueError, match="header 'h': AMQP has no type"):
        producer.submit(b"", "g", headers={"h": object()})
    with pytest.raises(ValueError, match="no group to close"):
        producer.submit(b"", close=True)
