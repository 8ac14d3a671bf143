"""Producers of STOMP, MQTT and AMQP 1.0, through RabbitMQ's own plugins: what they send is grouped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt
import pytest
import stomp
from pamqp import commands

from dispatcher.nodes import LocalRabbitMQ, Servers
from dispatcher.nodes.installed import ensure_installed, rabbitmq_server
from dispatcher.nodes.ports import LOOPBACK, free_ports
from tests.conftest import fresh_vhost
from tests.protocols.amqp1_sender import Amqp1Sender, message
from tests.service.harness import Bench, bench_of, lane
from tests.service.protocol_consumer import ProtocolConsumer
from tests.waiting import eventually

PLUGINS = ("rabbitmq_stomp", "rabbitmq_mqtt", "rabbitmq_amqp1_0")
TIMEOUT_S = 30
COUNT = 12


def is_rabbitmq_3() -> bool:
    return "rabbitmq_server-3." in str(rabbitmq_server())


class Node:
    """A RabbitMQ with the plugins."""

    def __init__(self) -> None:
        self.stomp_port, self.mqtt_port = free_ports(2)
        listeners = [
            f"stomp.listeners.tcp.1 = {LOOPBACK}:{self.stomp_port}",
            f"mqtt.listeners.tcp.1 = {LOOPBACK}:{self.mqtt_port}",
        ]
        self.rabbitmq = LocalRabbitMQ(listeners, PLUGINS)

    @property
    def amqp_port(self) -> int:
        port = urlsplit(self.rabbitmq.amqp_url).port
        assert port is not None
        return port


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    ensure_installed(print)
    made = Node()
    with made.rabbitmq:
        yield made


@pytest.fixture
async def bench(node: Node, servers: Servers) -> AsyncIterator[Bench]:
    own = Servers(node.rabbitmq.amqp_url, node.rabbitmq.management_url, servers.redis_url)
    with fresh_vhost(own) as vhost:
        async with bench_of(vhost) as made:
            yield made


async def run(bench: Bench, **keys: object) -> list[ProtocolConsumer]:
    """The lane, led, with two consumers."""
    await bench.run(orders=lane(**keys))
    return [await bench.joined(f"c{number}") for number in range(2)]


async def check_groups(consumers: list[ProtocolConsumer], groups: set[bytes]) -> None:
    """Every group is at one consumer, whole and in order; both have some."""
    await eventually(lambda: sum(len(c.received) for c in consumers) == COUNT)
    seen: dict[bytes, list[bytes]] = {}
    for consumer in consumers:
        assert consumer.received, "half of the groups are at each"
        of_this = {copy.group for copy in consumer.received}
        assert not of_this & seen.keys()
        for copy in consumer.received:
            seen.setdefault(copy.group, []).append(copy.body)
    assert seen.keys() == groups
    for bodies in seen.values():
        assert bodies == sorted(bodies)


async def owners_of(bench: Bench) -> dict[str, str | None]:
    """By group, once nothing is under way."""
    await bench.acked()
    groups = (await bench.ask("groups.list", limit=100))["groups"]
    return {group["group"]: group["owner"] for group in groups}


async def test_stomp_headers_are_headers(node: Node, bench: Bench) -> None:
    consumers = await run(bench)
    await asyncio.to_thread(_send_by_stomp, node, bench.vhost.name)
    await check_groups(consumers, {b"g\xc3\xbc0", b"g\xc3\xbc1", b"g\xc3\xbc2", b"g\xc3\xbc3"})
    copy = consumers[0].received[0]
    assert copy.properties.message_id, "from the header amqp-message-id"
    assert (await owners_of(bench)).keys() == {"gü0", "gü1", "gü2"}, "gü3 was closed"


def _send_by_stomp(node: Node, vhost: str) -> None:
    connection = stomp.Connection12([(LOOPBACK, node.stomp_port)], vhost=vhost)
    waiter = stomp.WaitingListener("last")
    connection.set_listener("", waiter)
    connection.connect("guest", "guest", wait=True)
    for number in range(COUNT):
        headers = {"persistent": "true", "x-group-id": f"gü{number % 4}", "amqp-message-id": f"m{number}"}
        if number == COUNT - 1:
            headers |= {"x-group-seq": "-1", "receipt": "last"}
        connection.send("/amq/queue/in", b"%02d" % number, headers=headers)
    waiter.wait_on_receipt()
    connection.disconnect()


async def test_an_mqtt_topic_is_the_group(node: Node, bench: Bench) -> None:
    consumers = await run(bench, group_header=["routing_key"])
    client = await bench.client()
    binding = commands.Queue.Bind(queue="in", exchange="amq.topic", routing_key="meters.#")
    await client.link.call(client.channel, binding)
    await asyncio.to_thread(_send_by_mqtt, node, bench.vhost.name)
    await check_groups(consumers, {b"meters.0", b"meters.1", b"meters.2", b"meters.3"})


def _send_by_mqtt(node: Node, vhost: str) -> None:
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="meter", protocol=mqtt.MQTTv311)
    client.username_pw_set(f"{vhost}:guest", "guest")
    client.connect(LOOPBACK, node.mqtt_port)
    client.loop_start()
    try:
        for number in range(COUNT):
            sent = client.publish(f"meters/{number % 4}", b"%02d" % number, qos=1)
            sent.wait_for_publish(TIMEOUT_S)
            assert sent.is_published()
    finally:
        client.disconnect()
        client.loop_stop()


async def test_amqp_1_0_properties_group_and_close(node: Node, bench: Bench) -> None:
    group_ids = ["property:group_id", "property:app_id"]
    keys = {"group_header": group_ids, "sequence_header": "property:group_sequence"}
    consumers = await run(bench, **keys)
    sent = [
        message(
            b"%02d" % number, message_id=f"m{number}", group_id=f"g{number % 4}",
            group_sequence=0xFFFF_FFFF if number == COUNT - 1 else number,
        )
        for number in range(COUNT)
    ]  # fmt: skip
    await asyncio.to_thread(_send_by_amqp1, node, bench.vhost.name, sent)
    await check_groups(consumers, {b"g0", b"g1", b"g2", b"g3"})
    owned = (await owners_of(bench)).keys()
    if is_rabbitmq_3():
        assert owned == {"g0", "g1", "g2"}, "g3 was closed by -1 as 32 bits say it"
    else:
        assert owned == {"g0", "g1", "g2", "g3"}, "RabbitMQ 4 drops the sequence"


async def test_amqp_1_0_application_properties_are_headers(node: Node, bench: Bench) -> None:
    consumers = await run(bench)
    sent = [
        message(b"%02d" % number, message_id=f"m{number}", application={"x-group-id": number % 4})
        for number in range(COUNT - 1)
    ]
    sent.append(message(b"11", message_id="last", application={"x-group-id": "3", "x-group-seq": -1}))
    await asyncio.to_thread(_send_by_amqp1, node, bench.vhost.name, sent)
    await check_groups(consumers, {b"0", b"1", b"2", b"3"})
    assert (await owners_of(bench)).keys() == {"0", "1", "2"}


def _send_by_amqp1(node: Node, vhost: str, messages: list[bytes]) -> None:
    address = "/amq/queue/in" if is_rabbitmq_3() else "/queues/in"
    with Amqp1Sender(node.amqp_port, vhost, address) as sender:
        for content in messages:
            sender.send(content)
