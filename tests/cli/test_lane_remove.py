"""`dispatcher lane remove`: what it lists is what there is, and nothing of it is left."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pika
import pytest
import redis
from pika.adapters.blocking_connection import BlockingChannel

from tests.cli.conftest import Run
from tests.cli.test_with_service import Service, service
from tests.conftest import Vhost
from tests.service.harness import STOP_S_MAX
from tests.waiting import wait_until

__all__ = ["service"]


@pytest.fixture
def channel(vhost: Vhost) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        yield connection.channel()


def _queues(vhost: Vhost, lane: str) -> set[str]:
    names = {queue["name"] for queue in vhost.management(f"queues/{vhost.name}")}
    return {name for name in names if name.startswith(f"{vhost.redis_prefix}.{lane}.")}


def _exchanges(vhost: Vhost, lane: str) -> set[str]:
    names = {exchange["name"] for exchange in vhost.management(f"exchanges/{vhost.name}")}
    own = f"{vhost.redis_prefix}.{lane}"
    return {name for name in names if name == own or name.startswith(f"{own}.")}


def _keys(vhost: Vhost, lane: str) -> set[str]:
    with redis.Redis.from_url(vhost.redis_url, decode_responses=True) as client:
        return set(client.scan_iter(match=f"{{{vhost.redis_prefix}:{lane}}}:*", count=1_000))


@pytest.mark.slow
def test_a_lane_is_removed_when_nothing_leads_it_and_nothing_waits(
    run: Run, service: Service, vhost: Vhost, channel: BlockingChannel
) -> None:
    assert run("groups", "pause", "bills", "--all").exit_code == 0  # a row in Redis
    led = run("lane", "remove", "bills", "--yes")
    assert (led.exit_code, led.stderr.startswith("dispatcher: a dispatcher leads lane bills")) == (1, True)
    service.process.terminate()
    service.process.wait(STOP_S_MAX)

    listed = json.loads(run("lane", "remove", "bills", "--dry-run", "--json").stdout)
    assert {row["queue"] for row in listed["queues"]} == _queues(vhost, "bills") != set()
    assert set(listed["exchanges"]) == _exchanges(vhost, "bills") != set()
    assert set(listed["keys"]) == _keys(vhost, "bills") != set()
    assert listed["inbound"] == [{"queue": "bills", "messages": 0}]

    channel.confirm_delivery()
    channel.basic_publish("", f"{vhost.redis_prefix}.bills.dead", b"")
    waits = run("lane", "remove", "bills", "--yes")
    assert (waits.exit_code, "1 message in " in waits.stderr, ".bills.dead" in waits.stderr) == (
        1,
        True,
        True,
    )
    assert {row["queue"] for row in listed["queues"]} == _queues(vhost, "bills")

    removed = run("lane", "remove", "bills", "--yes", "--force")
    assert (removed.exit_code, removed.stderr) == (0, "")
    assert removed.stdout.splitlines()[-1] == "bills: removed"
    assert (_queues(vhost, "bills"), _exchanges(vhost, "bills"), _keys(vhost, "bills")) == (
        set(),
        set(),
        set(),
    )
    again = run("lane", "remove", "bills", "--yes")
    assert (again.exit_code, "there is nothing of lane bills" in again.stderr) == (1, True)


@pytest.mark.slow
def test_what_waits_in_inbound_queues_stays_there(
    run: Run, service: Service, vhost: Vhost, channel: BlockingChannel
) -> None:
    service.process.terminate()
    service.process.wait(STOP_S_MAX)
    wait_until(lambda: channel.queue_declare("orders.high", passive=True).method.message_count == 30)
    waits = run("lane", "remove", "orders", "--yes")
    assert (waits.exit_code, "30 messages in orders.high" in waits.stderr) == (1, True)
    asked = run("lane", "remove", "orders", "--force")  # and nobody says yes
    assert asked.exit_code == 1
    assert _queues(vhost, "orders")
    assert run("lane", "remove", "orders", "--force", "--yes").exit_code == 0
    assert channel.queue_declare("orders.high", passive=True).method.message_count == 30
    assert (_queues(vhost, "orders"), _keys(vhost, "orders")) == (set(), set())
    assert _queues(vhost, "bills")


def test_the_lock_keeps_a_dispatcher_from_leading_meanwhile(
    run: Run, vhost: Vhost, channel: BlockingChannel
) -> None:
    lock = f"{vhost.redis_prefix}.orders.lock"
    channel.queue_declare(lock, durable=True)
    channel.basic_consume(lock, lambda *_: None, exclusive=True)
    refused = run("lane", "remove", "orders", "--yes", "--force")
    assert (refused.exit_code, "a dispatcher leads lane orders" in refused.stderr) == (1, True)
