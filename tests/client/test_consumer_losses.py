"""Both consumers when something is lost: connections, copies, queues, incarnations, the lane itself."""

from __future__ import annotations

import asyncio
import logging
import socket
from urllib.parse import quote, urlsplit, urlunsplit

import pytest
from pamqp import commands, frame

from dispatcher.errors import ConfigurationError, ConsumerRefused
from dispatcher.wire import protocol
from tests.client.lane_stub import LANE, LaneStub
from tests.client.subjects import AsyncConsumer, MakeConsumer, Work
from tests.client.tcp_proxy import TcpProxy
from tests.client.test_consumers import running
from tests.conftest import Vhost
from tests.waiting import eventually

# --- connections ---


async def test_work_goes_on_over_a_lost_connection(
    lane: LaneStub, proxy: TcpProxy, make_consumer: MakeConsumer
) -> None:
    work = Work()
    async with running(await make_consumer(url=proxy.url, opened=False), work):
        me = await lane.present()
        work.held = {b"0"}
        seqs = await lane.send_many(me, 4, groups=2)
        await eventually(lambda: work.running == 1 and len(me.acked) == 2)
        proxy.cut()
        await eventually(lambda: me.n == 2)
        last = await lane.send(me, b"4", b"g0")
        work.held = set()
        await eventually(lambda: not me.unsettled)
    assert lane.joins[-1].incarnation == lane.joins[0].incarnation
    assert lane.joins[-1].queue != lane.joins[0].queue
    assert [entry.seq for entry in lane.joins[-1].in_hand] == [seqs[0], seqs[2]]
    assert not work.stopped
    assert sorted(me.acked) == [*seqs, last]
    assert len(work.begun) == 5, "nothing was handed over twice"


async def test_copies_that_were_on_their_way_come_again_in_order(
    lane: LaneStub, proxy: TcpProxy, make_consumer: MakeConsumer
) -> None:
    work = Work()
    async with running(await make_consumer(url=proxy.url, opened=False), work):
        me = await lane.present()
        await lane.send(me, b"0", b"g")
        await eventually(lambda: work.ended)
        proxy.refuses = True
        proxy.cut()
        for index in range(1, 5):
            lane.lose(me, str(index).encode(), b"g")
        proxy.refuses = False
        await eventually(lambda: not me.unsettled)
    assert work.bodies() == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_connection_closed_by_an_operator_is_made_again(
    lane: LaneStub, vhost: Vhost, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    await lane.send(me, b"before", b"g")
    message = await consumer.next()
    mine = await eventually(
        lambda: [
            connection["name"]
            for connection in vhost.management(f"vhosts/{vhost.name}/connections")
            if "c1" in connection.get("client_properties", {}).get("connection_name", "")
        ],
        what="the management API knows the connection",
    )
    vhost.management(f"connections/{quote(mine[0])}", "DELETE")
    await eventually(lambda: me.n == 2)
    await lane.send(me, b"after", b"g")
    assert (await consumer.next()).body == b"after"
    assert await consumer.ack(message)
    await eventually(lambda: len(me.unsettled) == 1)


async def test_a_consumer_that_the_server_cancels_gets_a_new_queue(
    lane: LaneStub, proxy: TcpProxy, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer(url=proxy.url)
    me = await lane.present()
    await lane.send(me, b"in hand", b"g")
    message = await consumer.next()
    former = me.queue
    # Nobody but its connection may delete an exclusive queue, so a node would have to die for a real one.
    proxy.inject(frame.marshal(commands.Basic.Cancel("copies-1", True), 1))
    await eventually(lambda: me.n == 2)
    assert me.queue != former
    assert [entry.seq for entry in lane.joins[-1].in_hand] == [message.seq]
    await lane.send(me, b"work", b"g")
    assert (await consumer.next()).body == b"work"


async def test_too_long_without_a_connection_work_is_stopped(
    lane: LaneStub, proxy: TcpProxy, make_consumer: MakeConsumer
) -> None:
    work = Work()
    consumer = await make_consumer(url=proxy.url, opened=False, offline_limit_ms=300)
    async with running(consumer, work, concurrency=1):
        me = await lane.present()
        work.held = {b"0"}
        await lane.send_many(me, 3, groups=1)
        await eventually(lambda: work.running)
        proxy.refuses = True
        proxy.cut()
        await eventually(lambda: work.stopped)
        assert all(message.lost for message in work.begun)
        me.taken = True
        proxy.refuses = False
        again = await lane.present()
        assert again.uuid != me.uuid
        assert lane.joins[-1].in_hand == ()
    assert len(work.begun) == 1


# --- copies ---


async def test_a_missing_copy_is_fetched_with_a_new_queue(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    work = Work()
    async with running(await make_consumer(opened=False), work):
        me = await lane.present()
        await lane.send(me, b"0", b"g")
        lane.lose(me, b"1", b"g")
        await lane.send(me, b"2", b"g")
        await eventually(lambda: not me.unsettled)
    assert work.bodies() == [b"0", b"1", b"2"]
    assert [join.n for join in lane.joins] == [1, 2]
    assert lane.joins[1].queue != lane.joins[0].queue


async def test_the_old_queue_is_gone_after_a_new_one(
    lane: LaneStub, vhost: Vhost, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    former = me.queue
    lane.lose(me, b"1", b"g")
    await lane.send(me, b"2", b"g")
    assert (await consumer.next()).body == b"1"
    await eventually(
        lambda: former not in [queue["name"] for queue in vhost.management(f"queues/{vhost.name}")]
    )


async def test_a_copy_that_comes_again_is_settled_again_but_not_handled(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    seq, properties = lane.copy(me, b"0", b"g")
    await lane.publish(me.queue, properties, b"0")
    await consumer.ack(await consumer.next())
    await eventually(lambda: me.acked == [seq])
    me.unsettled[seq] = (properties, b"0")  # the dispatcher did not hear it
    await lane.publish(me.queue, properties, b"0")
    await eventually(lambda: me.acked == [seq, seq])
    await lane.send(me, b"1", b"g")
    assert (await consumer.next()).body == b"1"


# --- words of the dispatcher ---


async def test_taken_stops_the_work_and_joins_as_a_new_incarnation(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    work = Work()
    async with running(await make_consumer(opened=False), work, concurrency=2):
        former = await lane.present()
        work.held = {b"0", b"1"}
        await lane.send_many(former, 6, groups=2)
        await eventually(lambda: work.running == 2)
        await lane.say(former, protocol.TYPE_TAKEN)
        await eventually(lambda: len(work.stopped) == 2)
        present = await lane.present()
        assert (present.uuid != former.uuid, present.n) == (True, 1)
        work.held = set()
        await lane.send(present, b"0", b"g0", attempt=2)
        await eventually(lambda: not present.unsettled)
    assert work.bodies() == [b"0"], "what waited was dropped, what came again was handled"
    assert not former.settles


async def test_lost_messages_that_wait_are_not_iterated(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    consumer = await make_consumer()
    former = await lane.present()
    await lane.send_many(former, 3, groups=1)
    first = await consumer.next()
    await lane.say(former, protocol.TYPE_TAKEN)
    present = await lane.present()
    assert first.lost
    assert not await consumer.ack(first)
    await lane.send(present, b"new", b"g0")
    assert (await consumer.next()).body == b"new"


async def test_rejoin_keeps_queue_incarnation_and_work(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    queue = me.queue
    seqs = await lane.send_many(me, 2, groups=1)
    await consumer.ack(await consumer.next())
    await consumer.flush()  # its thread has heard of it
    await lane.say(me, protocol.TYPE_REJOIN)
    await eventually(lambda: me.n == 2)
    assert (lane.joins[-1].incarnation, lane.joins[-1].queue) == (me.uuid, queue)
    assert [entry.seq for entry in lane.joins[-1].in_hand] == seqs[1:]
    await lane.send(me, b"next", b"g0")
    await consumer.next()
    assert (await consumer.next()).body == b"next"


async def test_wait_is_asked_again_until_the_other_one_is_gone(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    lane.answer = protocol.TYPE_WAIT
    consumer = await make_consumer()
    await eventually(lambda: len(lane.joins) == 2)
    assert lane.joins[0] == lane.joins[1]
    lane.answer = protocol.TYPE_WELCOME
    await consumer.joined()


async def test_a_refused_consumer_raises(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    lane.answer = protocol.TYPE_REFUSED
    consumer = await make_consumer()
    with pytest.raises(ConsumerRefused, match="consumer c1"):
        await consumer.next()
    with pytest.raises(ConsumerRefused):
        await consumer.joined()


# --- the broker's word ---


def with_login(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{host}"))


async def test_the_rights_of_the_contract_are_enough(
    lane: LaneStub, vhost: Vhost, make_consumer: MakeConsumer
) -> None:
    user = f"user-{vhost.name}"
    vhost.management(f"users/{user}", "PUT", {"password": "secret", "tags": ""})
    try:
        rights = {
            "configure": r"^amq\.gen-",
            "write": rf"^(amq\.gen-.*|dispatch\.{LANE}\.in)$",
            "read": rf"^(amq\.gen-.*|dispatch\.{LANE})$",
        }
        vhost.management(f"permissions/{vhost.name}/{user}", "PUT", rights)
        consumer = await make_consumer(url=with_login(vhost.amqp_url, user, "secret"))
        me = await lane.present()
        lane.lose(me, b"0", b"g")
        await lane.send(me, b"1", b"g")
        await consumer.ack(await consumer.next())
        await eventually(lambda: len(me.acked) == 1)
    finally:
        vhost.management(f"users/{user}", "DELETE")


async def test_without_rights_it_says_so(lane: LaneStub, vhost: Vhost, make_consumer: MakeConsumer) -> None:
    user = f"user-{vhost.name}"
    vhost.management(f"users/{user}", "PUT", {"password": "secret", "tags": ""})
    try:
        rights = {"configure": "^$", "write": "^$", "read": "^$"}
        vhost.management(f"permissions/{vhost.name}/{user}", "PUT", rights)
        consumer = await make_consumer(url=with_login(vhost.amqp_url, user, "secret"))
        with pytest.raises(ConfigurationError, match=r"refuses this consumer.*(ACCESS_REFUSED|access)"):
            await consumer.next()
    finally:
        vhost.management(f"users/{user}", "DELETE")


async def test_a_wrong_password_says_so(vhost: Vhost, make_consumer: MakeConsumer) -> None:
    consumer = await make_consumer(url=with_login(vhost.amqp_url, "guest", "wrong"))
    with pytest.raises(ConfigurationError, match="RabbitMQ refuses this consumer"):
        await consumer.joined()


async def test_a_missing_vhost_says_so(vhost: Vhost, make_consumer: MakeConsumer) -> None:
    consumer = await make_consumer(url=vhost.amqp_url + "-missing")
    with pytest.raises(ConfigurationError, match="RabbitMQ refuses this consumer"):
        await consumer.joined()


async def test_it_waits_for_a_lane_that_is_not_there_yet(
    vhost: Vhost, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    async with LaneStub(vhost.amqp_url, declare=False) as lane:
        consumer = await make_consumer()
        await eventually(lambda: "is not there" in caplog.text)
        await asyncio.wait_for(lane.declare(), 10)
        await consumer.joined()
    (line,) = [r.message for r in caplog.records if "is not there" in r.message and r.levelname == "WARNING"]
    assert f"NOT_FOUND - no exchange '{lane.names.exchange}' in vhost '{vhost.name}'" in line
    assert f"lane {lane.names.lane} is not there" in line
    assert "compare lane, prefix and vhost" in line


async def test_it_waits_for_a_broker_that_is_not_there_yet(
    lane: LaneStub, proxy: TcpProxy, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.refuses = True
    consumer = await make_consumer(url=proxy.url)
    await eventually(lambda: proxy.refused >= 3)
    proxy.refuses = False
    await consumer.joined()
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert {record.name for record in warnings} == {"dispatcher.client"}, "the libraries' noise is kept out"
    assert len(warnings) == 1, "one outage, however often and in whichever words it comes"


async def test_nobody_listens_where_the_broker_should_be(
    lane: LaneStub, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        await make_consumer(url=f"amqp://127.0.0.1:{reserved.getsockname()[1]}/")
        await eventually(lambda: "refused" in caplog.text)
    assert "no connection to 127.0.0.1" in caplog.text


async def test_a_control_message_that_no_queue_takes_is_sent_again(
    lane: LaneStub, vhost: Vhost, make_consumer: MakeConsumer
) -> None:
    vhost.management(f"queues/{vhost.name}/{lane.names.control}", "DELETE")
    consumer = await make_consumer()
    await lane.declare()
    await consumer.joined()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"consumer_id": "a b"}, "consumer_id: must be segments"),
        ({"prefetch": 0}, "prefetch: must be an integer from 1 to 60000"),
        ({"offline_limit_ms": 0}, "offline_limit_ms: must be positive"),
        ({"url": "http://localhost"}, "url: must be a URL that begins with amqp"),
    ],
)
async def test_arguments_that_can_not_work_are_named(
    make_consumer: MakeConsumer, arguments: dict[str, object], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        await make_consumer(opened=False, **arguments)


async def test_a_consumer_that_is_not_open_says_so(vhost: Vhost) -> None:
    with pytest.raises(RuntimeError, match="not open"):
        await AsyncConsumer(vhost.amqp_url).joined()
