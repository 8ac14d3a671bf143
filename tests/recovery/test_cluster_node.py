"""A cluster of three nodes loses one while messages are parked, and has one that stands still."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Coroutine
from typing import Any

import pika
import pytest

from dispatcher.errors import BrokerUnavailable, ChannelRefused, DispatcherError
from dispatcher.nodes import LocalCluster, with_vhost
from dispatcher.nodes.local_cluster import ClusterNode
from dispatcher.service.lane_runner import LaneRunner
from dispatcher.service.topology import parking_queues
from dispatcher.settings import RabbitSettings
from dispatcher.wire import protocol
from dispatcher.wire.protocol import Command
from tests.amqp.samples import properties as raw_properties
from tests.conftest import Vhost
from tests.service.clients import Client
from tests.service.harness import LANE, Bench, bench_of, lane
from tests.waiting import SHARED, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PARKED = 400
LOOK_AHEAD = 50
#: A node that stands still is given up within five quarters of the cluster's `net_ticktime` of 6 s …
GIVEN_UP_S = 7.5
#: … a connection to it that a queue's new leader tries fails after Erlang's net_setuptime …
SETUP_S = 7.0
#: … and then a lane goes on in this time (R-9).
STALL_S = 15.0 * SHARED

#: RabbitMQ 4.0 says only after a minute that a classic queue can't be used.
FORGOTTEN_S = 60.0 + STALL_S


@pytest.fixture
def vhost(cluster_vhost: Vhost) -> Vhost:
    return cluster_vhost


def leader_of(cluster: LocalCluster, bench: Bench, queue: str) -> ClusterNode:
    vhost = bench.vhost
    name = vhost.management(f"queues/{vhost.name}/{queue}")["leader"]
    return next(node for node in cluster.nodes if node.node == name)


async def test_what_is_parked_outlives_the_node_of_its_queue(cluster: LocalCluster, vhost: Vhost) -> None:
    urls = [
        with_vhost(url, vhost.name) for url in cluster.amqp_urls[1:]
    ]  # a queue's leader is where it is made
    async with bench_of(vhost) as bench:
        client = await bench.client()
        await client.declare("in", x_queue_type="quorum")
        await bench.run(changes={"rabbitmq": {"urls": urls}}, orders=lane(look_ahead=LOOK_AHEAD))
        stuck = await bench.joined("stuck", prefetch=1, hold=True)
        client.send("in", b"0", "a")
        await stuck.has(1)
        other = await bench.joined("other")
        for number in range(1, PARKED + 1):
            client.send("in", b"%d" % number, "a")
        await eventually(lambda: bench.status()["parked"] == PARKED, what="the backlog is parked")
        lost = leader_of(cluster, bench, parking_queues(bench.names(), 1)[0])
        assert lost is not cluster.nodes[0]
        await asyncio.to_thread(lost.kill9)
        client.send("in", b"0", "b")
        await other.has(1)
        stuck.release()
        await stuck.has(PARKED + 1)
        assert [int(body) for body in stuck.bodies("a")] == list(range(PARKED + 1))
        assert not other.of_group("a")
        await eventually(lambda: bench.status()["parking"] == [], what="the parking queue was deleted")
        assert bench.status()["parked_lost"] == 0


async def test_a_lane_goes_on_beside_a_node_that_stands_still(cluster: LocalCluster, vhost: Vhost) -> None:
    """That node has the lane's own connection, and the leaders of its queues."""
    urls = [with_vhost(url, vhost.name) for url in cluster.amqp_urls]
    async with bench_of(vhost) as bench:
        client = await bench.client()
        await client.declare("in", x_queue_type="quorum")
        rabbitmq = {"urls": urls[1:], "heartbeat": "4s"}
        await bench.run(changes={"rabbitmq": rabbitmq}, orders=lane())
        consumer = await bench.joined("one")
        client.send("in", b"0", "a")
        await consumer.has(1)
        link = bench.runners[LANE]._link
        assert link is not None
        still = cluster.nodes[urls.index(link.url)]
        began = time.monotonic()
        await asyncio.to_thread(still.freeze)
        try:
            for number in range(1, 20):
                client.send("in", b"%d" % number, "a")
            await consumer.has(20, timeout_s=GIVEN_UP_S + STALL_S)
            took_s = time.monotonic() - began
        finally:
            still.thaw()
            await asyncio.to_thread(still.kill9)  # it might stay apart from the others until it starts again
        assert [int(body) for body in consumer.bodies("a")] == list(range(20))
        print(f"stood for {took_s:.1f} s")


async def test_a_new_leader_waits_for_what_the_consumer_of_a_node_that_stands_still_has(
    cluster: LocalCluster, vhost: Vhost
) -> None:
    """The inbound queue's next leader is elected after that node was given up. It tries to connect to it, and
    takes the consumer of the former leader of the lane for alive until that fails."""
    *others, still = cluster.nodes
    *urls, last = [with_vhost(url, vhost.name) for url in cluster.amqp_urls]
    async with bench_of(vhost) as bench:
        client = await bench.client()
        at_last = await Client.open(RabbitSettings(url=last))
        await at_last.declare("in", x_queue_type="quorum")
        await at_last.close()
        settings = bench.settings(orders=lane())
        await LaneRunner(settings, settings.lanes[LANE]).prepare()  # the lane's own queues are elsewhere
        await bench.run(changes={"rabbitmq": {"url": last}}, orders=lane())
        consumer = await bench.joined("one", prefetch=1, hold=True)
        for number in range(20):
            client.send("in", b"%d" % number, "a")
        await consumer.has(1)
        await eventually(lambda: bench.status()["inbound"][0]["held"] == 19, what="the leader has the rest")
        await eventually(lambda: witness_node(cluster, bench) == still.node, what="a witness")
        for node in others:  # else they may suspect it before they give it up, and elect at once
            node.evaluate("sys:suspend(aten_detector)")
        await asyncio.to_thread(still.freeze)
        try:
            await bench.crash()
            consumer.release()
            await bench.run(changes={"rabbitmq": {"urls": [*urls, last]}}, orders=lane())
            for number in range(20, 40):
                client.send("in", b"%d" % number, "a")
            await consumer.has(40, timeout_s=SETUP_S + STALL_S)
        finally:
            for node in others:
                node.evaluate("sys:resume(aten_detector)")
            still.thaw()
            await asyncio.to_thread(still.kill9)
        assert [int(body) for body in consumer.bodies("a")] == list(range(40))


async def test_a_lost_node_of_classic_queues_is_no_fault_of_the_configuration(
    cluster: LocalCluster, vhost: Vhost
) -> None:
    """A dispatcher that starts while it is away has other lanes to lead."""
    *others, lost = [with_vhost(url, vhost.name) for url in cluster.amqp_urls]

    def prepare(queue: str, *urls: str) -> Coroutine[Any, Any, None]:
        changes = {"rabbitmq": {"urls": list(urls)}}
        settings = bench.settings(changes=changes, orders=lane(queue))
        return LaneRunner(settings, settings.lanes[LANE]).prepare()

    async with bench_of(vhost) as bench:
        client = await bench.client()
        await client.declare("here")
        at_lost = await Client.open(RabbitSettings(url=lost))
        await at_lost.declare("there")
        await at_lost.close()
        await prepare("here", lost)  # the lane's own queues are there
        await asyncio.to_thread(cluster.nodes[2].kill9)
        await asyncio.to_thread(cluster.wait_for, cluster.nodes[:2])
        # From 3.12 on RabbitMQ says nothing of such a queue for a minute.
        away = ChannelRefused if client.broker_version < (3, 12) else BrokerUnavailable
        for queue in ("here", "there"):
            with pytest.raises(away):
                await prepare(queue, *others)
        await asyncio.to_thread(cluster.nodes[2].start)
        await asyncio.to_thread(cluster.wait_for, cluster.nodes)
        await prepare("there", *others)


async def test_classic_queues_of_a_lane_are_declared_anew_when_their_lost_node_is_forgotten(
    cluster: LocalCluster, vhost: Vhost
) -> None:
    """What waits in the inbound queue, which has members elsewhere, is handed over then."""
    urls = [with_vhost(url, vhost.name) for url in cluster.amqp_urls[1:]]
    async with bench_of(vhost) as bench:
        client = await bench.client()
        await client.declare("in", x_queue_type="quorum")
        await bench.run(changes={"rabbitmq": {"urls": urls}}, orders=lane(queue_type="classic"))
        consumer = await bench.joined("one")
        lost = cluster.leader_of(bench.names().control, vhost.name)
        *others, node = sorted(cluster.nodes, key=lambda node: node.node == lost)
        await asyncio.to_thread(node.kill9)
        await asyncio.to_thread(cluster.wait_for, others)
        client.send("in", b"0", "a")
        await asyncio.to_thread(cluster.forget, node)
        await consumer.has(1, timeout_s=FORGOTTEN_S)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_witness_whose_node_is_away_ends_no_leadership(
    cluster: LocalCluster, vhost: Vhost, *, is_killed: bool
) -> None:
    """RabbitMQ 4.0 ends the connection on which the queue is deleted (541) if its node was stopped in order.
    If it was killed, RabbitMQ 4.0 deletes the queue before the node is back."""
    urls = [with_vhost(url, vhost.name) for url in cluster.amqp_urls[1:]]
    async with bench_of(vhost) as bench:
        client = await bench.client()
        await client.declare("in", x_queue_type="quorum")
        await bench.run(changes={"rabbitmq": {"urls": urls}}, orders=lane())
        consumer = await bench.joined("one")
        former = await eventually(lambda: witness_node(cluster, bench), what="a witness")
        away = next(node for node in cluster.nodes if node.node == former)
        await asyncio.to_thread(away.kill9 if is_killed else away.stop)
        client.send("in", b"0", "a")
        await consumer.has(1, timeout_s=STALL_S)
        led = bench.runners[LANE].leaderships
        if not is_killed or client.broker_version < (4,):
            await asyncio.to_thread(away.start)
        await eventually(lambda: witness_node(cluster, bench) not in (None, former), what="a new witness")
        assert bench.runners[LANE].leaderships == led


def witness_node(cluster: LocalCluster, bench: Bench) -> str | None:
    """Where the lane's witness is; None while it is nowhere."""
    try:
        return cluster.leader_of(bench.names().witness, bench.vhost.name)
    except DispatcherError:
        return None


async def test_a_command_whose_sender_was_at_a_lost_node_costs_no_leadership(
    cluster: LocalCluster, vhost: Vhost
) -> None:
    """RabbitMQ 3.10 fails at the answer, and ends the connection that it was published on."""
    reply_to = reply_address(with_vhost(cluster.amqp_urls[2], vhost.name))
    urls = [with_vhost(url, vhost.name) for url in cluster.amqp_urls[:2]]
    async with bench_of(vhost) as bench:
        client = await bench.client()
        await client.declare("in", x_queue_type="quorum")
        await bench.run(changes={"rabbitmq": {"urls": urls}}, orders=lane())
        consumer = await bench.joined("one")
        await asyncio.to_thread(cluster.nodes[2].kill9)
        await asyncio.to_thread(cluster.wait_for, cluster.nodes[:2])
        command = Command(uuid=str(uuid.uuid4()), name="status", sent_at_ms=int(time.time() * 1_000))
        properties = raw_properties(delivery_mode=2, reply_to=reply_to.encode())
        exchange = bench.names().command_exchange
        client.send_raw(protocol.KEY_COMMAND, protocol.encode(command), properties, exchange)
        answers = bench.runners[LANE]._answers
        assert answers is not None

        def is_answered() -> bool:
            link = answers._link
            if link is None or answers._task is None or not answers._task.done():
                return False
            return link.closed.done() or not str(link.server_properties["version"]).startswith("3.10.")

        await eventually(is_answered, what="an answer, and the end of its connection")
        client.send("in", b"0", "a")
        await consumer.has(1, timeout_s=STALL_S)
        assert (await bench.ask("status"))["state"] == "active"
        assert bench.runners[LANE].leaderships == 1


def reply_address(amqp_url: str) -> str:
    """What RabbitMQ makes of `amq.rabbitmq.reply-to` for a sender that is connected there."""
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True)
        asks = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
        channel.basic_publish("", queue, b"", asks)
        while (answer := channel.basic_get(queue, auto_ack=True))[0] is None:
            pass
        return str(answer[1].reply_to)
