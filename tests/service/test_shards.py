"""`shards`: one exchange leads each group to one of several lanes, whose leaders are independent."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatcher.amqp.methods import ExchangeDeclare
from dispatcher.errors import BrokerUnavailable, ConfigurationError
from dispatcher.nodes.servers import PrivateServers
from dispatcher.service.lane_runner import LaneRunner, RunnerState
from dispatcher.service.shards import PLUGIN, RING_TYPE, fingerprint
from dispatcher.wire.shards import ShardNames, shard_name
from tests.amqp.samples import text
from tests.client.tcp_proxy import TcpProxy
from tests.conftest import Vhost
from tests.service.clients import Client
from tests.service.conftest import Starter
from tests.service.harness import LANE, START_S, Bench, bench_of, lane, private_vhost
from tests.service.program import program
from tests.service.protocol_consumer import ProtocolConsumer
from tests.service.test_spreading import Fleet
from tests.spec.lane_bench import clause
from tests.waiting import eventually

QUEUES = ("high", "low")
GROUPS = 40
EACH = 25


def shards(count: int, **keys: Any) -> dict[str, Any]:
    return lane(*QUEUES, shards=count, **keys)


def names_in(vhost: Vhost) -> ShardNames:
    return ShardNames(LANE, vhost.redis_prefix)


async def consumers_of(bench: Bench, count: int) -> dict[int, list[ProtocolConsumer]]:
    """Two for each shard."""
    numbers = range(1, count + 1)
    return {
        number: [await bench.joined(name, shard_name(LANE, number)) for name in ("a", "b")]
        for number in numbers
    }


def publish(client: Client, names: ShardNames, start: int, end: int) -> None:
    """Of each group its messages from `start` on, in both queues."""
    for n in range(start, end):
        for group in range(GROUPS):
            for queue in QUEUES:
                client.send(queue, f"{queue} {group} {n}".encode(), f"group {group}", exchange=names.exchange)


def shard_of_groups(consumers: dict[int, list[ProtocolConsumer]], each: int) -> dict[str, int]:
    """In which shard each group was, when each queue's messages of it came once and in order."""
    got: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    found: dict[str, set[int]] = defaultdict(set)
    for number, of_shard in consumers.items():
        for consumer in of_shard:
            assert not consumer.repeated
            for body in consumer.bodies():
                queue, group, n = body.decode().split()
                got[group][queue].append(int(n))
                found[group].add(number)
    assert all(got[str(group)] == {queue: list(range(each)) for queue in QUEUES} for group in range(GROUPS))
    assert all(len(numbers) == 1 for numbers in found.values())
    return {group: min(numbers) for group, numbers in found.items()}


def count_of(consumers: dict[int, list[ProtocolConsumer]]) -> int:
    return sum(len(consumer.received) for of_shard in consumers.values() for consumer in of_shard)


@pytest.mark.seed("R27")
async def test_groups_keep_their_order_and_their_shard_while_a_leader_is_killed(
    bench: Bench, dispatcher_process: Starter
) -> None:
    clause("S-1", "Each has a leader, inbound queues")
    clause("S-2", "All messages of a group go to one shard, whichever inbound queue they are for")
    first = dispatcher_process("first", **{LANE: shards(3)})
    await asyncio.to_thread(first.ready)
    second = dispatcher_process("second", **{LANE: shards(3)})
    await asyncio.to_thread(second.ready)
    consumers, client = await consumers_of(bench, 3), await bench.client()
    publish(client, names_in(bench.vhost), 0, EACH)
    await eventually(lambda: count_of(consumers) > GROUPS, START_S, "messages to flow")
    first.kill9()
    publish(client, names_in(bench.vhost), EACH, 2 * EACH)
    await client.confirmed()
    total = 2 * EACH * GROUPS * len(QUEUES)
    await eventually(lambda: count_of(consumers) >= total, START_S, "everything to be handed over")
    assert set(shard_of_groups(consumers, 2 * EACH).values()) == {1, 2, 3}


@pytest.fixture
async def private_bench(private_servers: PrivateServers) -> AsyncIterator[Bench]:
    async with bench_of(private_vhost(private_servers, "/")) as made:
        yield made


async def test_groups_have_the_same_shards_after_a_restart_of_rabbitmq(
    private_servers: PrivateServers, private_bench: Bench
) -> None:
    """A second lane gets one more shard after the restart: its producers are still led to those kept."""
    clause("S-3", "A group has the same shard before and after a restart of RabbitMQ")
    bench = private_bench
    async with bench_of(private_vhost(private_servers)) as other:
        await other.run(**{LANE: shards(18)})  # by what the start tries these can't be told from 19
        await published(other, 0, 1)
        await stopped(other)
        await bench.run(**{LANE: shards(5)})
        await published(bench, 0, 1)
        consumers = await consumers_of(bench, 5)
        await eventually(lambda: count_of(consumers) == GROUPS * len(QUEUES), what="the first messages")
        before = shard_of_groups(consumers, 1)
        await asyncio.to_thread(private_servers.rabbitmq.stop)
        await asyncio.to_thread(private_servers.rabbitmq.start)
        await eventually(lambda: all("lane_epoch" in bench.status(name) for name in bench.runners), START_S)
        await published(bench, 0, 1)
        later = await consumers_of(bench, 5)
        await eventually(lambda: count_of(later) == GROUPS * len(QUEUES), what="the later messages")
        assert shard_of_groups(later, 1) == before
        await other.run(**{LANE: shards(19)})
        await published(other, 1, 2)
        shard_of_groups(await drained(other, 19), 2)


async def published(bench: Bench, first: int, end: int) -> None:
    client = await bench.client()
    publish(client, names_in(bench.vhost), first, end)
    await client.confirmed()


@pytest.mark.parametrize("arguments", [{}, {"hash-header": "other"}])
async def test_a_ring_that_does_not_spread_by_the_group_is_refused(
    bench: Bench, arguments: dict[str, Any]
) -> None:
    clause("S-4", "It does not start if they don't agree, or if it is not the group header that decides")
    client = await bench.client()
    ring = names_in(bench.vhost).ring(3, fingerprint("x-group-id"))
    declare = ExchangeDeclare(exchange=ring, exchange_type=RING_TYPE, arguments=arguments)
    await client.link.call(client.channel, declare)
    with pytest.raises(ConfigurationError, match=rf"lanes\.orders\.shards: .*{re.escape(ring)}"):
        await bench.run(**{LANE: shards(3)})


async def test_without_the_plugin_the_start_says_what_to_enable(
    private_servers: PrivateServers, private_bench: Bench
) -> None:
    node = private_servers.rabbitmq
    node.evaluate(f'rabbit_registry:unregister(exchange, <<"{RING_TYPE}">>)')
    try:
        with pytest.raises(ConfigurationError, match=rf"lanes\.orders\.shards: .*{PLUGIN}"):
            await private_bench.run(wait=False, **{LANE: shards(2)})
        checked = await program(private_bench.vhost, "check", shards=2)
        assert (checked.returncode, checked.stdout.count(PLUGIN)) == (1, 1)
    finally:
        module = "rabbit_exchange_type_consistent_hash"
        node.evaluate(f'rabbit_registry:register(exchange, <<"{RING_TYPE}">>, {module})')
    checked = await program(private_bench.vhost, "check", shards=2)
    assert (checked.returncode, checked.stdout.count(PLUGIN)) == (0, 0)


async def stopped(bench: Bench) -> None:
    for name in list(bench._tasks):
        await bench.stop(name)


async def drained(bench: Bench, count: int) -> dict[int, list[ProtocolConsumer]]:
    """With consumers in each shard, until nothing is left."""
    consumers = await consumers_of(bench, count)
    for number in range(1, count + 1):
        for queue in QUEUES:
            await bench.acked(shard_name(queue, number), shard_name(LANE, number))
    for consumer in (consumer for of_shard in consumers.values() for consumer in of_shard):
        await consumer.drop()
    return consumers


async def test_more_shards_count_from_the_start_that_finds_the_former_ones_empty(bench: Bench) -> None:
    clause("S-5", "A start that does not find that")
    client, names = await bench.client(), names_in(bench.vhost)
    await bench.run(**{LANE: shards(2)})
    publish(client, names, 0, 1)
    await client.confirmed()
    await stopped(bench)
    await bench.run(**{LANE: shards(3)})
    publish(client, names, 1, 2)
    await client.confirmed()
    consumers = await drained(bench, 3)
    assert set(shard_of_groups(consumers, 2).values()) == {1, 2}
    await stopped(bench)
    await bench.run(**{LANE: shards(3)})
    publish(client, names, 0, 1)
    await client.confirmed()
    assert set(shard_of_groups(await drained(bench, 3), 1).values()) == {1, 2, 3}


@pytest.mark.parametrize("stands_by", [False, True])
async def test_an_inbound_queue_that_a_reload_brings_is_reached(bench: Bench, stands_by: bool) -> None:
    names, client = names_in(bench.vhost), await bench.client()
    await bench.run(**{LANE: lane("high", shards=2)})
    leading = dict(bench.runners)
    if stands_by:
        await bench.run(wait=False, **{LANE: lane("high", shards=2)})
        waiting = bench.runners.values()
        await eventually(lambda: all(each.state is RunnerState.STANDBY for each in waiting))
    changed = bench.settings(**{LANE: lane("high", "low", shards=2)})
    for name, runner in bench.runners.items():
        runner.reconfigure(changed.lanes[name])
    for name, runner in leading.items() if stands_by else ():
        await runner.stop()
        await bench.leads(name)
    await eventually(lambda: all(len(bench.status(name).get("inbound", [])) == 2 for name in leading))
    for group in range(GROUPS):
        client.send("low", b"one", f"group {group}", exchange=names.exchange)
    await client.confirmed()
    await eventually(lambda: sum(bench.status(name)["held"] for name in leading) == GROUPS)


@pytest.mark.parametrize("fewer", [1, 2])
async def test_fewer_shards_are_refused_until_the_former_ones_are_empty(bench: Bench, fewer: int) -> None:
    clause("S-5", "it is refused if something is left in a shard that it would not lead")
    client, names = await bench.client(), names_in(bench.vhost)
    await bench.run(**{LANE: shards(3)})
    publish(client, names, 0, 1)
    await client.confirmed()
    await stopped(bench)
    with pytest.raises(ConfigurationError, match=rf"lanes\.orders\.shards: .*{shard_name('high', 3)}"):
        await bench.run(wait=False, **{LANE: shards(fewer)})
    await stopped(bench)
    await bench.run(**{LANE: shards(3)})
    consumers = await drained(bench, 3)
    shard_of_groups(consumers, 1)
    await stopped(bench)
    await bench.run(**{LANE: shards(fewer)})
    assert set(bench._tasks) == ({LANE} if fewer == 1 else {shard_name(LANE, 1), shard_name(LANE, 2)})


@pytest.mark.parametrize("fewer", [1, 2])
async def test_fewer_shards_are_refused_also_if_rabbitmq_was_away_at_the_start(
    bench: Bench, fewer: int
) -> None:
    clause("S-4", "and before former shards were looked into")
    client, names = await bench.client(), names_in(bench.vhost)
    await bench.run(**{LANE: shards(3)})
    publish(client, names, 0, 1)
    await client.confirmed()
    await stopped(bench)
    async with TcpProxy(bench.vhost.amqp_url) as proxy:
        proxy.refuses = True
        settings = bench.settings(changes={"rabbitmq": {"url": proxy.url}}, **{LANE: shards(fewer)})
        bench.runners = {name: LaneRunner(settings, each) for name, each in settings.lanes.items()}
        for runner in bench.runners.values():
            with pytest.raises(BrokerUnavailable):
                await runner.prepare()
        proxy.refuses = False
        for name, runner in bench.runners.items():
            bench._tasks[name] = asyncio.create_task(runner.run())
        left = shard_name("high", 3)
        await eventually(lambda: all(left in (runner.problem or "") for runner in bench.runners.values()))
        await stopped(bench)


async def test_another_header_is_refused_until_all_shards_are_empty(bench: Bench) -> None:
    clause("S-5", "or, when `group_header` has changed, in any shard")
    client, names = await bench.client(), names_in(bench.vhost)
    await bench.run(**{LANE: shards(2)})
    client.send("low", b"one", "group", exchange=names.exchange)
    await client.confirmed()
    await stopped(bench)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"lanes\.orders\.shards: messages in low"):
            await bench.run(wait=False, **{LANE: shards(2, group_header=["other"])})
        await stopped(bench)
    await bench.run(**{LANE: shards(2)})
    await drained(bench, 2)
    await stopped(bench)
    await bench.run(**{LANE: shards(2, group_header=["other"])})
    for group in range(GROUPS):
        client.send("low", b"one", "one", text("other", f"{group}"), exchange=names.exchange)
    await client.confirmed()
    await eventually(lambda: sum(bench.status(name)["held"] for name in bench._tasks) == GROUPS)
    assert all(bench.status(name)["held"] for name in bench._tasks)


async def test_shards_are_refused_while_something_is_left_of_the_lane_without_them(bench: Bench) -> None:
    client = await bench.client()
    await bench.run(**{LANE: shards(1)})
    with pytest.raises(ConfigurationError, match=r"lanes\.orders\.shards: a dispatcher leads orders"):
        await bench.run(wait=False, **{LANE: shards(2)})
    client.send("low", b"one", "group")
    await client.confirmed()
    await stopped(bench)
    with pytest.raises(ConfigurationError, match=r"lanes\.orders\.shards: messages in low"):
        await bench.run(wait=False, **{LANE: shards(2)})
    await client.purge("low")
    await stopped(bench)
    await bench.run(**{LANE: shards(2)})


async def test_replicas_share_the_shards_out_while_messages_flow_in_order(bench: Bench) -> None:
    names, client = names_in(bench.vhost), await bench.client()
    fleet = Fleet(bench.settings(**{LANE: shards(4)}))
    sent = 0

    async def until(share: list[int]) -> None:
        nonlocal sent
        while fleet.shares() != share:
            publish(client, names, sent, sent + 1)
            sent += 1
            await client.confirmed()

    try:
        await fleet.start("one")
        await eventually(lambda: fleet.shares() == [4], START_S)
        consumers = await consumers_of(bench, 4)
        await fleet.start("two")
        await until([2, 2])
        await fleet.stop("one")
        await until([4])
        total = sent * GROUPS * len(QUEUES)
        await eventually(lambda: count_of(consumers) >= total, START_S, "everything to be handed over")
        shard_of_groups(consumers, sent)
    finally:
        for name in list(fleet.replicas):
            await fleet.stop(name)
