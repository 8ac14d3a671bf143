"""Consumers that do not settle in time, and those that an operator ends."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatcher.nodes.servers import PrivateServers
from dispatcher.settings import RabbitSettings
from tests.client.tcp_proxy import TcpProxy
from tests.conftest import Vhost
from tests.service.harness import Bench, bench_of, lane
from tests.service.program import program
from tests.waiting import eventually

#: Who settles at once is not late, on a machine that is busy with other tests either.
ACK_TIMEOUT_S = 4


@pytest.mark.seed("R14")
async def test_what_is_not_settled_in_time_is_reported(bench: Bench) -> None:
    with capture_logs() as logged:
        await bench.run(orders=lane(ack_timeout="1s"))
        client = await bench.client()
        consumer = await bench.joined("c1", hold=True)
        client.send("in", b"0", "g")
        await consumer.has(1)
        await eventually(lambda: bench.counter("overdue") == 1)
        why = await bench.ask("groups.why", group="g")
        consumer.release()
        await bench.acked()
    assert any("overdue" in detail for detail in why["details"])
    (told,) = [record for record in logged if record["event"] == "message_overdue"]
    assert (told["consumer"], told["group"]) == ("c1", "g")
    assert bench.counter("consumers_evicted") == 0


@pytest.mark.seed("R14")
async def test_who_is_late_is_evicted_and_its_messages_go_to_others(bench: Bench) -> None:
    await bench.run(orders=lane(ack_timeout=f"{ACK_TIMEOUT_S}s", on_ack_timeout="evict"))
    client = await bench.client()
    stuck = await bench.joined("c1", hold=True)
    for number in range(3):
        client.send("in", b"%d" % number, "g")
    await stuck.has(3)
    other = await bench.joined("c2")
    assert [copy.body for copy in await other.has(3)] == [b"0", b"1", b"2"]
    assert {copy.attempt for copy in other.received} == {2}
    await eventually(lambda: stuck.heard("taken"))
    stuck.release()
    await stuck.confirmed()
    await bench.acked()
    await eventually(lambda: bench.counter("settles_ignored") == 3)
    assert bench.counter("consumers_evicted") == 1


async def test_who_settles_while_nothing_is_heard_of_rabbitmq_is_not_late(vhost: Vhost) -> None:
    """The dispatcher's connection lets nothing through to it for longer than `ack_timeout`."""
    async with TcpProxy(vhost.amqp_url) as proxy, bench_of(replace(vhost, amqp_url=proxy.url)) as bench:
        bench.rabbitmq = RabbitSettings(url=vhost.amqp_url)  # of everybody else
        await bench.run(orders=lane(ack_timeout=f"{ACK_TIMEOUT_S}s", on_ack_timeout="evict"))
        client = await bench.client()
        consumer = await bench.joined("c1", hold=True)
        client.send("in", b"0", "g")
        await consumer.has(1)
        proxy.stall(to_server=False)
        consumer.release()
        await consumer.confirmed()
        await eventually(lambda: bench.status()["oldest_in_flight_ms"] > 1_500 * ACK_TIMEOUT_S)
        proxy.resume()
        await bench.acked()
        assert bench.counter("overdue") == bench.counter("consumers_evicted") == 0
        assert not consumer.heard("taken")


async def test_an_evicted_consumer_loses_its_connection_and_its_groups(
    bench: Bench, servers: PrivateServers
) -> None:
    await bench.run(orders=lane(reconnect_grace="60s"))
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    client.send("in", b"0", "g")
    await consumer.has(1)
    other = await bench.joined("c2")
    arguments = ("consumers", "evict", "orders", "c1", "--json", "--management", servers.management_url)
    result = await program(bench.vhost, *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(result.stdout)
    assert (answer["incarnation"], answer["in_flight"], answer["groups"]) == (consumer.incarnation, 1, 1)
    assert "->" in answer["connection"]
    await eventually(lambda: not consumer.connected, what="the end of its connection")
    assert (await other.has(1))[0].attempt == 2
    await bench.acked()


async def test_without_the_management_api_nobody_is_evicted(bench: Bench) -> None:
    await bench.run(orders=lane())
    consumer = await bench.joined("c1")
    nowhere = "http://guest:guest@127.0.0.1:1"
    arguments = ("consumers", "evict", "orders", "c1", "--management", nowhere)
    result = await program(bench.vhost, *arguments)
    assert result.returncode == 1
    assert result.stderr.startswith("dispatcher: its connection can't be closed, so nothing was done: ")
    assert result.stderr.count("\n") == 1
    assert consumer.connected
    assert bench.counter("consumers_evicted") == 0


async def test_nobody_of_that_name(bench: Bench, servers: PrivateServers) -> None:
    await bench.run(orders=lane())
    arguments = ("consumers", "evict", "orders", "c9", "--management", servers.management_url)
    result = await program(bench.vhost, *arguments)
    assert result.returncode == 1
    assert result.stderr.startswith("dispatcher: no consumer 'c9'; ")
