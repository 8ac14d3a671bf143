"""The process: probes, metrics, stopping, and refusals at start."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import pytest

from dispatcher.nodes.management import Management
from tests.client.tcp_proxy import TcpProxy
from tests.conftest import Vhost
from tests.service.conftest import Starter
from tests.service.harness import STOP_S_MAX, Bench, DispatcherProcess, lane
from tests.spec.lane_bench import clause
from tests.waiting import eventually, wait_until


async def test_it_serves_probes_and_metrics(dispatcher_process: Starter, bench: Bench) -> None:
    one = dispatcher_process(orders=lane(), payments=lane("in.b"))
    assert one.get("/healthz")[0] == 200
    wait_until(lambda: one.ready() == "orders: leading\npayments: leading\n")
    client = await bench.client()
    consumer = await bench.joined("c1")
    for number in range(10):
        client.send("in", b"x", f"g{number % 2}")
    await consumer.has(10)

    def settled() -> str:
        text = one.get("/metrics")[1]
        return text if 'dispatcher_settled_total{lane="orders"} 10.0' in text else ""

    text = wait_until(settled)
    assert 'dispatcher_consumers{lane="orders"} 1.0' in text
    assert 'dispatcher_lane_active{lane="payments"} 1.0' in text
    assert one.get("/")[0] == 200


async def test_sigterm_leaves_quickly_and_loses_nothing(dispatcher_process: Starter, bench: Bench) -> None:
    one = dispatcher_process(orders=lane())
    one.ready()
    client = await bench.client()
    consumers = [await bench.joined(f"c{number}") for number in range(2)]
    for number in range(3000):
        client.send("in", b"%d" % number, f"g{number % 30}")
    await client.confirmed()
    await eventually(lambda: sum(len(c.received) for c in consumers) >= 500)
    code, took_s = one.terminate()
    assert code == 0, one.log()
    assert took_s < STOP_S_MAX
    assert not one.logged("lane_failed")
    left = await client.ready("in")
    assert left > 0, "the test needs a stop in the middle"
    dispatcher_process("two", orders=lane())
    await eventually(lambda: sum(len(c.received) for c in consumers) >= 3000)
    got = [copy for consumer in consumers for copy in consumer.received]
    assert sorted(int(copy.body) for copy in got) == list(range(3000))
    assert {copy.attempt for copy in got} == {1}
    assert not any(consumer.repeated for consumer in consumers)


async def test_sigterm_with_slow_consumers_returns_what_is_unsettled(
    dispatcher_process: Starter, bench: Bench
) -> None:
    one = dispatcher_process(orders=lane())
    one.ready()
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True, prefetch=20)
    for number in range(50):
        client.send("in", b"%d" % number, "g")
    await consumer.has(20)
    consumer.settle(sorted(consumer.in_hand)[:5])
    await consumer.confirmed()
    code, took_s = await asyncio.to_thread(one.terminate)
    assert (code, took_s < STOP_S_MAX) == (0, True), one.log()
    await asyncio.to_thread(dispatcher_process("two", orders=lane()).ready)
    consumer.release()
    await consumer.has(50)
    assert [int(copy.body) for copy in consumer.received] == list(range(50))


async def test_no_body_and_no_password_is_in_the_log(dispatcher_process: Starter, bench: Bench) -> None:
    """Whatever becomes of a message: handled, failed, expired, refused, or no control message at all."""
    one = dispatcher_process(orders=lane(ungrouped="reject"))
    one.ready()
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    client.send("in", b"SECRET", "g")
    client.send("in", b"SECRET", "h")
    client.send("in", b"SECRET")
    copies = await consumer.has(2)
    consumer.fail(copies[0].seq, "no such customer")
    consumer.settle([copies[1].seq])
    for body in (b"SECRET", b'{"type":"settle","acked":"SECRET"}'):
        consumer.publish(body)
    await client.has_ready(bench.names().dead, 4)
    await eventually(lambda: len(one.logged("control_message_refused")) == 2)
    assert one.logged("message_failed")[0]["reason"] == "no such customer"
    assert "SECRET" not in one.log()
    assert "guest:guest" not in one.log()


@pytest.mark.seed("Q11", "A27", "A30")
async def test_a_standby_takes_over_from_a_killed_process(dispatcher_process: Starter, bench: Bench) -> None:
    clause("R-6", "one leads, the others stand by")
    clause("R-6", "Owners stay")
    one = dispatcher_process(orders=lane())
    one.ready()
    two = dispatcher_process("two", orders=lane())
    assert "standing by" in two.ready()
    client = await bench.client()
    first = await bench.joined("c1")
    for group in "abcd":
        client.send("in", b"0", group)
    await first.has(4)
    second = await bench.joined("c2")
    for group in "efgh":
        client.send("in", b"0", group)
    await second.has(4)
    wait_until(lambda: 'dispatcher_settled_total{lane="orders"} 8.0' in one.get("/metrics")[1])
    one.kill9()
    for group in "abcdefgh":  # who had no owner would be spread over both in turn
        client.send("in", b"1", group)
    await first.has(8)
    await second.has(8)
    assert {copy.group for copy in first.received} == {b"a", b"b", b"c", b"d"}
    wait_until(lambda: "leading" in two.get("/readyz")[1])


def test_refusals_at_start_are_one_line_each(dispatcher_process: Starter) -> None:
    missing = {"inbound": [{"queue": "nowhere"}, {"queue": "fresh", "declare": True}, {"queue": "nor.here"}]}
    one = dispatcher_process(orders=missing, payments={"inbound": [{"queue": "nowhere.either"}]})
    assert one.exited() == 1
    assert "lanes.orders.inbound[0].queue: there is no queue 'nowhere'" in one.log()
    assert "lanes.orders.inbound[2].queue: there is no queue 'nor.here'" in one.log()
    assert "lanes.payments.inbound[0].queue: there is no queue 'nowhere.either'" in one.log()
    assert "Traceback" not in one.log()


def test_wrong_credentials_are_named(dispatcher_process: Starter, vhost: Vhost) -> None:
    url = vhost.amqp_url.replace("guest:guest", "guest:wrong-secret")
    one = dispatcher_process(changes={"rabbitmq": {"url": url}}, orders=lane())
    _is_refused(one, "refused user 'guest'")
    assert "wrong-secret" not in one.log()


def test_a_missing_vhost_is_named(dispatcher_process: Starter, vhost: Vhost) -> None:
    url = vhost.amqp_url.replace(vhost.name, "no-such-vhost")
    _is_refused(
        dispatcher_process(changes={"rabbitmq": {"url": url}}, orders=lane()), "vhost 'no-such-vhost'"
    )


def test_a_vhost_without_permission_is_named(dispatcher_process: Starter, vhost: Vhost) -> None:
    user = _user(vhost.api, "stranger-" + vhost.name)
    try:
        url = vhost.amqp_url.replace("guest:guest", f"{user}:secret")
        _is_refused(
            dispatcher_process(changes={"rabbitmq": {"url": url}}, orders=lane()), f"vhost {vhost.name!r}"
        )
    finally:
        vhost.api.request(f"users/{user}", "DELETE")


def test_missing_rights_in_the_vhost_are_named(dispatcher_process: Starter, vhost: Vhost) -> None:
    user = _user(vhost.api, "reader-" + vhost.name)
    try:
        rights = {"configure": "^$", "write": ".*", "read": ".*"}
        vhost.api.request(f"permissions/{vhost.name}/{user}", "PUT", rights)
        url = vhost.amqp_url.replace("guest:guest", f"{user}:secret")
        one = dispatcher_process(changes={"rabbitmq": {"url": url}}, orders=lane())
        _is_refused(one, "lanes.orders.inbound[0].queue: RabbitMQ refused to declare it")
    finally:
        vhost.api.request(f"users/{user}", "DELETE")


def test_a_wrong_redis_password_is_named(dispatcher_process: Starter, vhost: Vhost) -> None:
    url = vhost.redis_url.replace("redis://", "redis://:wrong-secret@")
    one = dispatcher_process(changes={"redis": {"url": url}}, orders=lane(), payments=lane("in.b"))
    _is_refused(one, "password")
    assert "wrong-secret" not in one.log()
    assert one.log().count("redis.url") == 1, "said once, not once per lane"


def test_servers_that_are_away_are_waited_for(dispatcher_process: Starter, vhost: Vhost) -> None:
    away = {"rabbitmq": {"url": "amqp://guest:guest@127.0.0.1:1/"}, "redis": {"url": "redis://127.0.0.1:1/0"}}
    one = dispatcher_process(changes=away, orders=lane())
    wait_until(lambda: "RabbitMQ at 127.0.0.1:1 can't be reached" in one.get("/readyz")[1])
    assert one.get("/readyz")[0] == 503
    code, took_s = one.terminate()
    assert (code, took_s < STOP_S_MAX) == (0, True)


async def test_an_outage_is_told_once(dispatcher_process: Starter, vhost: Vhost) -> None:
    async with TcpProxy(vhost.amqp_url) as proxy:
        proxy.refuses = True
        one = dispatcher_process(changes={"rabbitmq": {"url": proxy.url}}, orders=lane())

        async def leads() -> bool:
            return "leading" in (await asyncio.to_thread(one.get, "/readyz"))[1]

        await eventually(lambda: proxy.refused >= 5, what="several attempts")
        assert len(one.logged("lane_interrupted")) == 1
        proxy.refuses = False
        await eventually(leads, what="it to lead")
        proxy.refuses = True
        proxy.cut()
        await eventually(lambda: proxy.refused >= 10, what="several attempts more")
        assert len(one.logged("lane_interrupted")) == 2


def test_a_server_that_never_answers_does_not_keep_it_from_stopping(dispatcher_process: Starter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        away = {"rabbitmq": {"url": f"amqp://guest:guest@127.0.0.1:{port}/"}}
        one = dispatcher_process(changes=away, orders=lane())
        with silent.accept()[0]:
            code, took_s = one.terminate()
        assert (code, took_s < STOP_S_MAX) == (0, True), one.log()


def test_an_interrupt_stops_it_as_well(dispatcher_process: Starter) -> None:
    one = dispatcher_process(orders=lane())
    one.ready()
    os.kill(one.pid, signal.SIGINT)
    assert one.exited(STOP_S_MAX) == 0


def _user(api: Management, name: str) -> str:
    api.request(f"users/{name}", "PUT", {"password": "secret", "tags": ""})
    return name


def _is_refused(process: DispatcherProcess, text: str) -> None:
    code = process.exited()
    assert text in process.log(), process.log()
    assert code == 1
    assert "Traceback" not in process.log()
