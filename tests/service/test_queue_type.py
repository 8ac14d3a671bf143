"""`queue_type`: what a lane's own queues are, how it changes over, and the lock that is a quorum queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from pamqp import commands
from typer.testing import CliRunner

from dispatcher.amqp.events import ConnectionClosed, ConsumerCancelled, Delivery
from dispatcher.amqp.link import Link
from dispatcher.cli import app
from dispatcher.errors import BrokerUnavailable, ConfigurationError, DeliveredAgain
from dispatcher.service.lane_runner import LaneRunner, RunnerState
from dispatcher.service.queue_kinds import has_priorities, kind_of_queue
from dispatcher.service.quorum_lock import QuorumLock
from dispatcher.service.topology import declare_lane
from tests.service.harness import LANE, Bench, lane
from tests.waiting import eventually

QUORUM = {"x_queue_type": "quorum"}
OWN = ("control", "command", "heartbeat", "lock", "dead")


def kinds(bench: Bench) -> dict[str, str]:
    """Of the lane's own durable queues, as RabbitMQ says."""
    vhost, exchange = bench.vhost, bench.names().exchange
    queues = {queue["name"]: queue["type"] for queue in vhost.management(f"queues/{vhost.name}")}
    return {word: queues.get(f"{exchange}.{word}", "none") for word in OWN}


async def handles(bench: Bench, message: bytes) -> None:
    """One more message goes its way."""
    client, consumer = await bench.client(), await bench.joined("one")
    client.send("in", message, "g")
    await consumer.has(1)
    await consumer.confirmed()
    await bench.acked()
    await consumer.leave()
    await consumer.drop()


@pytest.mark.parametrize(
    ("inbound", "keys", "kind"),
    [
        (QUORUM, {}, "quorum"),
        ({}, {}, "classic"),
        ({}, {"queue_type": "quorum"}, "quorum"),
    ],
    ids=["auto-quorum", "auto-classic", "quorum"],
)
async def test_own_queues_are_of_the_kind_that_is_wanted(
    bench: Bench, inbound: dict[str, Any], keys: dict[str, Any], kind: str
) -> None:
    client = await bench.client()
    await client.declare("in", **inbound)
    await bench.run(orders=lane(**keys))
    assert set(kinds(bench).values()) == {kind}
    await handles(bench, b"1")


#: RabbitMQ names an argument that differs before it says of which type a queue is.
ARGUMENTS = {
    "x_dead_letter_exchange": "rejects", "x_message_ttl": 900_000, "x_max_length": 9_000,
    "x_overflow": "reject-publish", "x_single_active_consumer": False,
}  # fmt: skip


@pytest.mark.parametrize(("type_", "kind"), [({}, "classic"), (QUORUM, "quorum")], ids=["classic", "quorum"])
async def test_a_queue_with_arguments_is_of_the_kind_that_it_is(
    bench: Bench, type_: dict[str, Any], kind: str
) -> None:
    """Nobody else can consume a classic one, and its lane's queues are classic, too."""
    client = await bench.client()
    await client.declare("in", **type_, **ARGUMENTS)
    await bench.run(orders=lane())
    assert set(kinds(bench).values()) == {kind}
    assert await kind_of_queue(client.link, "in") == kind
    await handles(bench, b"1")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_to_ask_for_the_kind_takes_no_message(bench: Bench, kind: str) -> None:
    client = await bench.client()
    await client.declare("in", x_queue_type=kind)
    client.send("in", b"1", "g")
    await client.confirmed()
    assert await kind_of_queue(client.link, "in") == kind
    (fetched,) = await client.take("in")
    assert not fetched.redelivered


#: With the vhost of a test RabbitMQ's text is cut in the kind, before it, or in the name of the queue.
@pytest.mark.parametrize("size", [128, 150, 255])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_a_lane_over_a_queue_with_a_long_name_is_led(
    bench: Bench, tmp_path: Path, kind: str, size: int
) -> None:
    queue = "in" + "q" * (size - 2)
    client = await bench.client()
    await client.declare(queue, x_queue_type=kind)
    await bench.run(orders=lane(queue))
    assert set(kinds(bench).values()) == {kind}
    assert await kind_of_queue(client.link, queue) == kind
    assert await has_priorities(client.link, queue) is False
    assert await asyncio.to_thread(told, bench, tmp_path, lane(queue), "problem") == []


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_what_a_long_name_hides_is_taken_for_a_quorum_queue(bench: Bench, kind: str) -> None:
    """RabbitMQ names the first argument that differs, and no place is left for its value."""
    queue = "in" + "q" * 248
    client = await bench.client()
    await client.declare(queue, x_queue_type=kind, **ARGUMENTS)
    assert await kind_of_queue(client.link, queue) == "quorum"


@pytest.mark.parametrize("keys", [{}, {"queue_type": "classic"}], ids=["auto", "classic"])
async def test_what_came_in_replicated_is_kept_replicated(bench: Bench, keys: dict[str, Any]) -> None:
    """One of two inbound queues is a quorum queue: the dead queue is one, whatever the others are."""
    client = await bench.client()
    await client.declare("in", **QUORUM)
    await client.declare("low")
    await bench.run(orders=lane("in", "low", **keys))
    assert kinds(bench) == {**dict.fromkeys(OWN, "classic"), "dead": "quorum"}
    await handles(bench, b"1")


@asynccontextmanager
async def candidate(bench: Bench, heard: list[Delivery]) -> AsyncIterator[tuple[QuorumLock, Link]]:
    """One in the line for the lock, on a connection of its own."""

    def tell(events: list[Any]) -> None:
        for event in events:
            if isinstance(event, Delivery):
                heard.append(event)
            if isinstance(event, Delivery | ConsumerCancelled | ConnectionClosed):
                lock.receive(event)

    link = await Link.open(bench.rabbitmq, name="candidate", on_events=tell)
    lock = QuorumLock(link, bench.names(), renew_s=0.01)
    try:
        yield lock, link
    finally:
        link.abort()


async def test_the_lock_is_renewed_and_passes_on(bench: Bench) -> None:
    await declared(bench)
    firsts: list[Delivery] = []
    seconds: list[Delivery] = []
    failures: list[BaseException] = []
    async with candidate(bench, firsts) as (first, link), candidate(bench, seconds) as (second, _):
        assert await first.take()
        keeping = asyncio.create_task(first.keep(failures.append))
        waiting = asyncio.create_task(second.take())
        await eventually(lambda: len(firsts) > 20, what="renewals")
        assert not seconds
        assert not failures
        link.abort()
        assert not await waiting, "another one was there"
        await keeping
        await second.renew()
    assert len(seconds) == 2


async def test_who_waits_hears_of_the_end_of_the_lock(bench: Bench) -> None:
    await declared(bench)
    async with candidate(bench, []) as (first, _), candidate(bench, []) as (second, link):
        await first.take()
        waiting = asyncio.create_task(second.take())
        client = await bench.client()
        await client.has_ready(bench.names().lock, 1)  # what the second has laid down
        await link.call(second.channel, commands.Queue.Delete(queue=bench.names().lock))
        with pytest.raises(BrokerUnavailable):
            await waiting


async def declared(bench: Bench) -> None:
    """The lane's own queues."""
    client = await bench.client()
    await client.declare("in", **QUORUM)
    settings = bench.settings(orders=lane())
    await declare_lane(client.link, bench.names(), settings.lanes[LANE], [True])


async def test_a_standby_takes_over(bench: Bench) -> None:
    client = await bench.client()
    await client.declare("in", **QUORUM)
    await bench.run(orders=lane())
    settings = bench.settings(orders=lane())
    second = bench.runners["second"] = LaneRunner(settings, settings.lanes[LANE])
    await second.prepare()
    bench._tasks["second"] = asyncio.create_task(second.run())
    await eventually(lambda: second.state is RunnerState.STANDBY, what="the second to stand by")
    assert bench.runners[LANE].state is RunnerState.LEADING
    await bench.crash()
    await eventually(lambda: second.state is RunnerState.LEADING, what="the second to lead")
    bench.runners[LANE] = second
    await handles(bench, b"1")


async def test_a_lock_that_is_given_twice_was_lost(bench: Bench) -> None:
    lock = QuorumLock((await bench.client()).link, bench.names())
    with pytest.raises(DeliveredAgain):
        lock.receive(Delivery(1, b"lock", 1, True, b"", b"", b"\0\0", b""))
    with pytest.raises(DeliveredAgain):
        await lock.renew()


async def test_a_lock_that_is_given_twice_ends_a_proof_that_is_under_way(bench: Bench) -> None:
    """Else a new leader would stand still until RabbitMQ has not answered for 20 s."""
    await declared(bench)
    async with candidate(bench, []) as (lock, link):
        await lock.take()
        await link.call(lock.channel, commands.Queue.Delete(queue=bench.names().lock))  # nobody answers
        proof = asyncio.create_task(lock.renew())
        await asyncio.sleep(0)  # sleeps: until it has asked
        with pytest.raises(DeliveredAgain):
            lock.receive(Delivery(1, b"lock", 2, True, b"", b"", b"\0\0", b""))
        with pytest.raises(DeliveredAgain):
            async with asyncio.timeout(5):
                await proof


async def test_a_deleted_lock_ends_the_leadership_and_is_declared_again(bench: Bench) -> None:
    client = await bench.client()
    await client.declare("in", **QUORUM)
    await bench.run(orders=lane())
    runner = bench.runners[LANE]
    await client.link.call(client.channel, commands.Queue.Delete(queue=bench.names().lock))
    await eventually(lambda: runner.leaderships == 2, what="another leadership")
    assert kinds(bench)["lock"] == "quorum"
    await handles(bench, b"1")


async def test_empty_classic_queues_are_replaced_and_others_stay(bench: Bench, tmp_path: Path) -> None:
    client = await bench.client()
    await client.declare("in")
    await bench.run(orders=lane())
    await handles(bench, b"1")
    await bench.stop()
    await client.link.call(client.channel, commands.Queue.Delete(queue="in"))
    await client.declare("in", **QUORUM)
    client.send(bench.names().dead, b"kept")
    await client.confirmed()
    await bench.run(orders=lane())
    assert kinds(bench) == {**dict.fromkeys(OWN, "quorum"), "dead": "classic"}
    assert await asyncio.to_thread(warnings, bench, tmp_path) == [bench.names().dead]
    await handles(bench, b"2")
    await bench.stop()
    assert len(await client.take(bench.names().dead)) == 1
    await bench.run(orders=lane())
    assert set(kinds(bench).values()) == {"quorum"}
    assert await asyncio.to_thread(warnings, bench, tmp_path) == []
    await handles(bench, b"3")
    await bench.stop()
    # RabbitMQ deletes no quorum queue on the condition that it is empty: these stay as they are.
    await bench.run(orders=lane(queue_type="classic"))
    assert set(kinds(bench).values()) == {"quorum"}
    await handles(bench, b"4")


async def test_what_came_in_replicated_lies_on_one_node_only_if_the_operator_says_so(
    bench: Bench, tmp_path: Path
) -> None:
    """The queues of hand-over consumers are classic."""
    client = await bench.client()
    await client.declare("in")
    handing = {"handover": True, "consumers": [{"id": "billing", "prefetch": 5}]}

    async def found(level: str, *queues: str, **keys: str) -> list[str]:
        return await asyncio.to_thread(told, bench, tmp_path, lane(*queues, **handing, **keys), level)

    assert await found("problem", "in") == await found("warning", "in") == []
    await client.declare("low", **QUORUM)
    (problem,) = await found("problem", "in", "low")
    assert problem.startswith("lanes.orders.queue_type: ")
    with pytest.raises(ConfigurationError) as refused:
        await bench.run(orders=lane("in", "low", **handing))
    assert str(refused.value) == problem
    assert await found("problem", "in", "low", queue_type="classic") == []
    (_,) = await found("warning", "in", "low", queue_type="classic")
    await bench.run(orders=lane("in", "low", **handing, queue_type="classic"))
    assert bench.status()["state"] == "active"


def warnings(bench: Bench, folder: Path) -> list[str]:
    """The own queues that `dispatcher check` warns of."""
    return [word.split("'")[1] for word in told(bench, folder, lane()) if "is a classic queue" in word]


def told(bench: Bench, folder: Path, keys: dict[str, Any], level: str = "warning") -> list[str]:
    """What `dispatcher check` warns of, or calls a problem."""
    file = folder / "dispatcher.yaml"
    vhost = bench.vhost
    document = {
        "rabbitmq": {"url": vhost.amqp_url}, "redis": {"url": vhost.redis_url}, "prefix": vhost.redis_prefix,
        "lanes": {LANE: keys},
    }  # fmt: skip
    file.write_text(yaml.safe_dump(document))
    result = CliRunner().invoke(app, ["check", "-c", str(file), "--json"])
    findings = json.loads(result.stdout)["findings"]
    return [finding["text"] for finding in findings if finding["level"] == level]
