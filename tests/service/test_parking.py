"""Parking on real servers: what a stuck consumer's groups leave behind holds up nobody, and is not lost."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import redis
import structlog
from pamqp import commands

from dispatcher.amqp.events import Fetched
from dispatcher.amqp.methods import QueueDeclare
from dispatcher.core.bounds import DELIVERIES_MAX
from dispatcher.errors import ChannelRefused
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.service.lane_runner import LaneRunner
from dispatcher.service.topology import parking_queues
from tests.service.clients import Client
from tests.service.conftest import AtOnce, Starter
from tests.service.harness import LANE, Bench, lane
from tests.service.protocol_consumer import ProtocolConsumer
from tests.service.test_queue_type import QUORUM, warnings
from tests.waiting import eventually

BACKLOG = 60
LOOK_AHEAD = 20
#: Enough that a dispatcher is killed in the middle of moving them, twice.
LONG_BACKLOG = 3_000


def numbers(consumer: ProtocolConsumer, group: str) -> list[int]:
    return [int(body) for body in consumer.bodies(group)]


def first_of(bench: Bench) -> str:
    """The name of the lane's first parking queue."""
    return parking_queues(bench.names(), 1)[0]


async def parked(client: Client, bench: Bench) -> int | None:
    """How many wait in the first parking queue; None: there is none."""
    channel = await client.link.open_channel()
    try:
        declared = await client.link.call(channel, QueueDeclare(queue=first_of(bench), passive=True))
    except ChannelRefused:
        return None
    return int(declared.message_count)


async def are_parked(client: Client, bench: Bench, least: int) -> bool:
    """Whether so many, or more, wait in the first parking queue."""
    return (await parked(client, bench) or 0) >= least


async def has_no_parking_queue(client: Client, bench: Bench) -> None:
    async def gone() -> bool:
        return await parked(client, bench) is None

    await eventually(gone, what="the parking queue was deleted")


async def a_parked_group(bench: Bench) -> tuple[Client, ProtocolConsumer, ProtocolConsumer]:
    """Group a belongs to a consumer that is stuck with its first message; the rest of it is parked."""
    await bench.run(orders=lane(look_ahead=LOOK_AHEAD))
    return await park_a_group(bench, await bench.client())


async def park_a_group(bench: Bench, client: Client) -> tuple[Client, ProtocolConsumer, ProtocolConsumer]:
    stuck = await bench.joined("stuck", prefetch=1, hold=True)
    client.send("in", b"0", "a")
    await stuck.has(1)
    other = await bench.joined("other")
    for number in range(1, BACKLOG):
        client.send("in", b"%d" % number, "a")
    await eventually(lambda: bench.status()["parked"] == BACKLOG - 1, what="the backlog is parked")
    return client, stuck, other


@pytest.mark.seed("Q19", "Q25", "A4", "C6")
async def test_a_blocked_backlog_beyond_the_look_ahead_is_parked_and_comes_back_in_order(
    bench: Bench,
) -> None:
    client, stuck, other = await a_parked_group(bench)
    for number in range(100):
        client.send("in", b"%d" % number, f"g{number % 7}")
    await other.has(100)
    assert await client.ready("in") == 0
    assert len(stuck.received) == 1
    client.send("in", b"%d" % BACKLOG, "a")
    await eventually(lambda: bench.status()["parked"] == BACKLOG)
    stuck.release()
    await stuck.has(BACKLOG + 1)
    assert numbers(stuck, "a") == list(range(BACKLOG + 1))
    assert {copy.attempt for copy in stuck.received} == {1}
    assert not stuck.repeated
    assert not other.of_group("a")
    await has_no_parking_queue(client, bench)
    await eventually(lambda: bench.status()["parking"] == [])  # RabbitMQ knows it first
    await bench.acked()


async def test_why_list_show_and_status_say_what_is_parked_and_where(bench: Bench) -> None:
    await a_parked_group(bench)
    queue = first_of(bench)
    why = await bench.ask("groups.why", group="a")
    assert (why["reason"], why["facts"]["consumer"]) == ("consumer_full", "stuck")
    assert why["behind"] == BACKLOG - 1
    assert why["details"][0] == (
        f"parked: {BACKLOG - 1} of its messages are in {queue}, those in flight included; "
        "what arrives of it goes there too"
    )
    listed = await bench.ask("groups.list")
    assert [(row["group"], row["held"], row["in_flight"], row["parked"]) for row in listed["groups"]] == [
        ("a", 0, 1, BACKLOG - 1)
    ]
    shown = await bench.ask("groups.show", group="a")
    assert [row["parked_in"] for row in shown["messages"]] == [None]
    status = await bench.ask("status")
    assert status["parking"] == [
        {"queue": queue, "consumer": "stuck", "groups": 1, "parked": BACKLOG - 1, "problem": None}
    ]


async def test_the_age_of_what_is_only_parked_is_known_also_to_the_next_leader(bench: Bench) -> None:
    begun_ms = time.time() * 1000
    _, stuck, _ = await a_parked_group(bench)
    parked_ms = time.time() * 1000

    async def is_as_old_as_it_was() -> bool:
        """By both clocks it came between the two instants: an answer takes its time."""
        before_ms = time.time() * 1000
        row = (await bench.ask("groups.list", sort="age"))["groups"][0]
        after_ms = time.time() * 1000
        oldest_ms = row["oldest_ms"] or 0
        is_right = before_ms - oldest_ms <= parked_ms and after_ms - oldest_ms >= begun_ms
        return row["group"] == "a" and is_right

    assert await is_as_old_as_it_was()
    await bench.crash()
    await bench.run(orders=lane(look_ahead=LOOK_AHEAD))
    assert bench.status()["parked"] == BACKLOG - 1
    assert await is_as_old_as_it_was()
    stuck.settle(list(stuck.in_hand))
    await stuck.has(2)
    row = (await bench.ask("groups.list"))["groups"][0]
    assert row["held"] > 0
    assert await is_as_old_as_it_was()


async def test_what_waits_for_longer_than_park_after_is_parked(bench: Bench) -> None:
    await bench.run(orders=lane(park_after="300ms"))
    client = await bench.client()
    for number in range(3):
        client.send("in", b"%d" % number, "a")
        client.send("in", b"%d" % number)
    await eventually(lambda: bench.status()["parked"] == 6, what="all is parked, with and without a group")
    consumer = await bench.joined("c1")
    await consumer.has(6)
    assert numbers(consumer, "a") == [0, 1, 2]
    await has_no_parking_queue(client, bench)


def arguments_of(bench: Bench, queue: str) -> dict[str, object]:
    """A queue's arguments, as the management API tells them."""
    found = bench.vhost.management(f"queues/{bench.vhost.name}/{queue}")["arguments"]
    assert isinstance(found, dict)
    return found


async def test_a_parking_queue_does_not_fill_rabbitmqs_memory(bench: Bench) -> None:
    await a_parked_group(bench)
    assert arguments_of(bench, first_of(bench)) == {"x-queue-type": "classic", "x-queue-mode": "lazy"}


async def test_a_parking_queue_that_was_declared_otherwise_is_used_as_it_is(bench: Bench) -> None:
    """By an earlier version, say; with what it may hold."""
    client = await bench.client()
    channel = await client.link.open_channel()
    plain = {"x-queue-type": "classic"}
    await client.link.call(channel, QueueDeclare(queue=first_of(bench), durable=True, arguments=plain))
    await bench.run(orders=lane(look_ahead=LOOK_AHEAD))
    _, stuck, _ = await park_a_group(bench, client)
    assert arguments_of(bench, first_of(bench)) == plain
    stuck.release()
    await stuck.has(BACKLOG)
    assert numbers(stuck, "a") == list(range(BACKLOG))
    await has_no_parking_queue(client, bench)


async def test_what_came_in_replicated_is_parked_replicated(bench: Bench) -> None:
    """Leaders are killed while they hold parked messages, which a quorum queue gives back in any order."""
    client = await bench.client()
    await client.declare("in", **QUORUM)
    options, total = lane(look_ahead=100), 300
    await bench.run(orders=options)
    slow = await bench.joined("slow", prefetch=50, hold=True)
    client.send("in", b"0", "a")
    await slow.has(1)
    await bench.joined("other")
    for number in range(1, total):
        client.send("in", b"%d" % number, "a")
    await eventually(lambda: bench.status()["parked"] >= 200, what="the backlog is parked")
    assert arguments_of(bench, first_of(bench))["x-queue-type"] == "quorum"
    slow.settle(list(slow.in_hand))
    await slow.has(100)
    for _ in range(2):
        await bench.crash()
        await bench.run(orders=options)
        await eventually(lambda: bench.status()["held"] >= 40, what="it reads more than can go")
    slow.release()
    await slow.has(total)
    assert numbers(slow, "a") == list(range(total))
    await has_no_parking_queue(client, bench)
    await bench.acked()


class Patient(AtOnce):
    """Waits for former leaders for longer than the test may take."""

    former_s = 600.0


class PatientRunner(LaneRunner):
    session_type = Patient


async def test_what_a_former_leader_still_has_comes_before_what_it_left(bench: Bench) -> None:
    """RabbitMQ ends each channel of a lost connection when it has worked off what came on it: the lock may be
    free before the last message that was fetched is back."""
    bench.runner_type = PatientRunner
    client = await bench.client()
    await client.declare("in", **QUORUM)
    options = lane(look_ahead=LOOK_AHEAD)
    await bench.run(orders=options)
    _, stuck, other = await park_a_group(bench, client)
    await bench.crash()
    await client.has_ready(first_of(bench), BACKLOG - 1)
    former = await client.link.open_channel()
    for _ in range(3):
        fetched = await client.link.call(former, commands.Basic.Get(queue=first_of(bench)))
        assert isinstance(fetched, Fetched)
    with structlog.testing.capture_logs() as logs:
        await bench.run(orders=options)
        stuck.release()
        await eventually(lambda: [one for one in logs if one["event"] == "parking_queue_is_read"])
    client.send("in", b"0", "b")
    await other.has(1)
    assert numbers(stuck, "a") == [0]
    await client.link.call(former, commands.Channel.Close(200, "it has ended", 0, 0))
    await stuck.has(BACKLOG)
    assert numbers(stuck, "a") == list(range(BACKLOG))
    await has_no_parking_queue(client, bench)


async def test_a_classic_parking_queue_of_before_is_emptied_and_replaced(
    bench: Bench, tmp_path: Path
) -> None:
    client = await bench.client()
    await client.declare("in", **QUORUM)
    await client.declare(first_of(bench))
    await bench.run(orders=lane(look_ahead=LOOK_AHEAD))
    _, stuck, other = await park_a_group(bench, client)
    # RabbitMQ 4 adds the type.
    assert arguments_of(bench, first_of(bench)) in ({}, {"x-queue-type": "classic"})
    assert await asyncio.to_thread(warnings, bench, tmp_path) == [first_of(bench)]
    stuck.release()
    await stuck.has(BACKLOG)
    assert numbers(stuck, "a") == list(range(BACKLOG))
    await has_no_parking_queue(client, bench)
    await stuck.leave()
    await other.leave()
    await park_a_group(bench, client)
    second = parking_queues(bench.names(), 2)[1]  # the name of the first one rests
    assert arguments_of(bench, second)["x-queue-type"] == "quorum"
    assert await asyncio.to_thread(warnings, bench, tmp_path) == []


@pytest.mark.parametrize("act", [commands.Queue.Purge, commands.Queue.Delete], ids=["purged", "deleted"])
async def test_what_is_gone_from_a_parking_queue_is_an_error_with_the_count(
    bench: Bench, act: type[commands.Queue.Purge | commands.Queue.Delete]
) -> None:
    client, stuck, _ = await a_parked_group(bench)
    with structlog.testing.capture_logs() as logged:
        await client.link.call(client.channel, act(queue=first_of(bench)))
        client.send("in", b"%d" % BACKLOG, "a")
        stuck.release()
        await stuck.has(2)
        await eventually(lambda: bench.status()["parked_lost"] == BACKLOG - 1, what="it tells of the loss")
        await has_no_parking_queue(client, bench)
    assert numbers(stuck, "a") == [0, BACKLOG]
    (line,) = [line for line in logged if line["event"] == "parking_lost"]
    assert (line["log_level"], line["lane"], line["queue"]) == ("error", LANE, first_of(bench))
    assert line["lost"] == BACKLOG - 1
    await bench.acked()


@pytest.mark.seed("A4", "C6")
async def test_over_the_byte_budget_the_longest_backlog_is_parked(bench: Bench) -> None:
    await bench.run(orders=lane(look_ahead_bytes="64KiB"))
    client = await bench.client()
    stuck = await bench.joined("stuck", prefetch=1, hold=True)
    client.send("in", b"0", "a")
    await stuck.has(1)
    other = await bench.joined("other")
    for number in range(1, 20):
        client.send("in", b"%d" % number + b" " * 8_192, "a")
    client.send("in", b"0", "b")
    await other.has(1)
    stuck.release()
    await stuck.has(20)
    assert numbers(stuck, "a") == list(range(20))
    await has_no_parking_queue(client, bench)


async def test_a_leader_may_be_killed_while_it_parks_and_while_it_unparks(
    bench: Bench, dispatcher_process: Starter
) -> None:
    options = lane(look_ahead=200)
    one = dispatcher_process(orders=options)
    one.ready()
    client = await bench.client()
    stuck = await bench.joined("stuck", prefetch=50, hold=True)
    client.send("in", b"0", "a")
    await stuck.has(1)
    sent = 1

    def send_more() -> None:
        nonlocal sent
        for number in range(sent, sent + LONG_BACKLOG):
            client.send("in", b"%d" % number, "a")
        sent += LONG_BACKLOG

    send_more()
    other = await bench.joined("other")
    for more in (100, 1_000):
        least = more
        while True:
            await eventually(lambda least=least: are_parked(client, bench, least), what=f"{least} parked")
            one.kill9()
            if await client.ready("in"):
                break
            send_more()  # it had parked all of them before we looked: that was no death in the middle
            least = (await parked(client, bench) or 0) + more
            one.start()
        one.start()
    client.send("in", b"0", "b")
    await other.has(1)
    stuck.release()
    for least in (200, 1_000):
        await stuck.has(least)
        one.kill9()
        assert len(stuck.received) < sent, "the test needs a death in the middle"
        one.start()
    await stuck.has(sent)
    assert numbers(stuck, "a") == list(range(sent))
    assert {copy.attempt for copy in stuck.received} == {1}
    await has_no_parking_queue(client, bench)
    assert await client.ready("in") == 0


async def test_a_parked_group_survives_a_redis_that_comes_back_empty(bench: Bench) -> None:
    client, stuck, other = await a_parked_group(bench)
    session = bench.runners[LANE]._session
    assert session is not None
    inbound = session.lane.state.inbounds[0]
    await eventually(lambda: not inbound.settled.unproven, what="RabbitMQ has the acks of what was moved")
    await bench.crash()
    store = redis.Redis.from_url(bench.vhost.redis_url)
    assert store.delete(*LaneKeys.of(bench.vhost.redis_prefix, LANE).all())
    store.close()
    starting = asyncio.create_task(bench.run(orders=lane(look_ahead=LOOK_AHEAD)))
    for consumer in (stuck, other):
        await eventually(lambda consumer=consumer: bool(consumer.heard("rejoin")))
        await consumer.rejoin()
    await starting
    stuck.release()

    def handed() -> bool:
        return len(stuck.received) + len(other.received) >= BACKLOG

    await eventually(handed, what="all of it was handed over")
    both = [*stuck.received, *other.received]
    assert sorted(int(copy.body) for copy in both) == list(range(BACKLOG))
    for consumer in (stuck, other):
        got = numbers(consumer, "a")
        assert got == sorted(got)
    await has_no_parking_queue(client, bench)
    await bench.acked()


async def test_what_a_quorum_queue_has_delivered_ten_times_is_parked(bench: Bench) -> None:
    """RabbitMQ 4 drops it at the 21st time."""
    client = await bench.client()
    await client.declare("in", x_queue_type="quorum")
    for number in range(3):
        client.send("in", b"%d" % number, "a")
    await client.confirmed()
    for lost in range(DELIVERIES_MAX + 1):
        await bench.run(orders={"inbound": [{"queue": "in"}]})
        if lost < DELIVERIES_MAX:
            await eventually(lambda: bench.status()["held"] == 3)
            await bench.crash()
    await eventually(lambda: bench.status()["parked"] == 3, what="all of it is parked")
    consumer = await bench.joined("c1")
    await consumer.has(3)
    assert numbers(consumer, "a") == [0, 1, 2]
    await has_no_parking_queue(client, bench)


async def test_a_paused_groups_backlog_is_parked_and_resumed_in_order(bench: Bench) -> None:
    await bench.run(orders=lane(look_ahead=LOOK_AHEAD))
    client = await bench.client()
    consumer = await bench.joined("c1")
    client.send("in", b"0", "a")
    await consumer.has(1)
    await bench.ask("groups.pause", group="a")
    for number in range(1, BACKLOG):
        client.send("in", b"%d" % number, "a")
    client.send("in", b"0", "b")
    await consumer.has(2)
    await eventually(lambda: bench.status()["parked"] == BACKLOG - 1, what="the backlog is parked")
    assert (await bench.ask("groups.why", group="a"))["reason"] == "paused"
    await bench.ask("groups.resume", group="a")
    await consumer.has(BACKLOG + 1)
    assert numbers(consumer, "a") == list(range(BACKLOG))
    await has_no_parking_queue(client, bench)


async def test_a_parked_group_may_be_moved_and_goes_on_at_its_new_owner(bench: Bench) -> None:
    client, stuck, other = await a_parked_group(bench)
    await bench.ask("rebalance", group="a", to="other")
    assert not other.received
    stuck.release()
    await other.has(BACKLOG - 1)
    assert (numbers(stuck, "a"), numbers(other, "a")) == ([0], list(range(1, BACKLOG)))
    await has_no_parking_queue(client, bench)
