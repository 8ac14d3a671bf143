"""`lane reshard`: another number of shards while producers, consumers and dispatchers go on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from pamqp import commands

from dispatcher.amqp.methods import ExchangeDeclare, ExchangeDelete, QueueBind
from dispatcher.client import GroupConsumer, GroupProducer
from dispatcher.client.copies import Message
from dispatcher.errors import SendFailed
from dispatcher.service.topology import parking_queues
from dispatcher.wire.protocol import KEY_COMMAND
from dispatcher.wire.shards import ShardNames, shard_name
from tests.service.clients import Client
from tests.service.harness import LANE, Bench, lane
from tests.service.program import Ended, program
from tests.spec.lane_bench import clause
from tests.waiting import eventually

GROUPS = 20
#: Messages of each group before, between and after changes, at least.
SOME = 5


def shards(count: int) -> dict[str, Any]:
    return lane(shards=count)


async def led(bench: Bench, count: int) -> tuple[Client, ShardNames]:
    for name in list(bench.runners):
        await bench.stop(name)
    bench.runners.clear()
    await bench.run(**{LANE: shards(count)})
    return await bench.client(), ShardNames(LANE, bench.vhost.redis_prefix)


async def led_with_one(bench: Bench) -> tuple[Client, ShardNames, str]:
    """Three shards, a client, and the shard in which a message waits."""
    client, names = await led(bench, 3)
    await publish(client, names, b"one")
    await eventually(lambda: sum(bench.status(name)["held"] for name in bench.runners) == 1)
    return client, names, next(name for name in bench.runners if bench.status(name)["held"])


async def publish(client: Client, names: ShardNames, body: bytes) -> None:
    client.send("in", body, "group", exchange=names.exchange)
    await client.confirmed()


async def reshard(bench: Bench, count: int, *arguments: str, configured: int = 3) -> Ended:
    return await program(
        bench.vhost, "lane", "reshard", LANE, "--shards", str(count), *arguments, shards=configured
    )


class Flow:
    """Producers that send one message of each group after the other, and a consumer."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.sent = 0  # of each group
        self.refused = 0
        self.got: dict[str, list[int]] = {}
        #: RabbitMQ may have stored one and ended the channel, because of another one, before it confirmed it.
        self._sent_again: set[tuple[str, int]] = set()

    async def handle(self, message: Message) -> None:
        group, number = message.group_text or "", int(message.body)
        of_group = self.got.setdefault(group, [])
        if (group, number) in self._sent_again and of_group and of_group[-1] == number:
            return
        of_group.append(number)

    async def send(self) -> None:
        vhost = self._bench.vhost
        exchange = ShardNames(LANE, vhost.redis_prefix).exchange
        async with GroupProducer(vhost.amqp_url, exchange=exchange, routing_key="in") as producer:
            while True:
                await asyncio.gather(*(self._send(producer, group) for group in range(GROUPS)))
                self.sent += 1

    async def _send(self, producer: GroupProducer, group: int) -> None:
        while True:
            try:
                await producer.send(b"%d" % self.sent, f"g{group}")
            except SendFailed:
                self.refused += 1
                self._sent_again.add((f"g{group}", self.sent))
            else:
                return

    async def some_more(self) -> None:
        wanted = self.sent + SOME
        await eventually(lambda: self.sent >= wanted, what="messages to flow")


async def used(bench: Bench) -> set[str]:
    """The shards in which something was settled in this leadership."""
    return {name for name in bench.runners if bench.counter("settled", name)}


@pytest.mark.seed("R27")
async def test_the_order_is_kept_while_shards_become_more_and_fewer(bench: Bench) -> None:
    clause("S-7", "Until all that is in the shards is settled, RabbitMQ refuses publishes")
    await led(bench, 2)
    flow = Flow(bench)
    consumer = GroupConsumer(bench.vhost.amqp_url, LANE, "c", prefix=bench.vhost.redis_prefix, sharded=True)
    tasks = [
        asyncio.create_task(flow.send()),
        asyncio.create_task(consumer.run(flow.handle, stop_on_signals=False)),
    ]
    try:
        await flow.some_more()
        await led(bench, 3)
        await flow.some_more()
        assert await used(bench) == {shard_name(LANE, 1), shard_name(LANE, 2)}
        more = await reshard(bench, 3)
        assert more.returncode == 0, more.stderr
        await eventually(lambda: bench.counter("settled", shard_name(LANE, 3)), what="the third to work")
        await flow.some_more()
        fewer = await reshard(bench, 2)
        assert fewer.returncode == 0, fewer.stderr
        in_third = bench.counter("settled", shard_name(LANE, 3))
        await flow.some_more()
        assert bench.counter("settled", shard_name(LANE, 3)) == in_third
        tasks[0].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tasks[0]
        await eventually(lambda: all(len(of_group) >= flow.sent for of_group in flow.got.values()))
        for group, of_group in flow.got.items():
            assert of_group[: flow.sent] == list(range(flow.sent)), group
        assert len(flow.got) == GROUPS
        consumer.stop()
        await tasks[1]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_nothing_changes_if_the_shards_do_not_become_empty(bench: Bench) -> None:
    client, names, holder = await led_with_one(bench)
    refused = await reshard(bench, 2, "--timeout", "1s")
    assert (refused.returncode, f"{holder}: 1 held" in refused.stderr) == (1, True)
    await publish(client, names, b"two")
    consumer = await bench.joined("c", holder)
    assert [copy.body for copy in await consumer.has(2)] == [b"one", b"two"]


async def test_what_is_parked_in_a_shard_that_nobody_leads_is_left(bench: Bench) -> None:
    client, names = await led(bench, 3)
    await bench.stop(shard_name(LANE, 3))
    parked = parking_queues(names.shard(3), 1)[0]
    await client.declare(parked)
    refused = await reshard(bench, 2, "--timeout", "1s")
    assert (refused.returncode, shard_name(LANE, 3) in refused.stderr) == (1, True)
    await client.delete(parked)
    done = await reshard(bench, 2)
    assert done.returncode == 0, done.stderr


async def test_a_shard_of_which_nothing_is_known_in_time_is_named(bench: Bench) -> None:
    """Its leader does not get the question."""
    client, names = await led(bench, 3)
    third, call = names.shard(3), client.link.call
    of_commands = {"exchange": third.command_exchange, "routing_key": KEY_COMMAND}
    await client.declare("unread")
    await call(client.channel, QueueBind(queue="unread", **of_commands))
    await call(client.channel, commands.Queue.Unbind(queue=third.command, **of_commands))
    refused = await reshard(bench, 2, "--timeout", "1s")
    assert (refused.returncode, shard_name("in", 3) in refused.stderr) == (1, True), refused.stderr


async def test_a_change_that_was_killed_is_done_by_the_next_one(bench: Bench) -> None:
    client, names = await led(bench, 3)
    await client.link.call(client.channel, ExchangeDelete(exchange=names.exchange))
    done = await reshard(bench, 2)
    assert done.returncode == 0, done.stderr
    await publish(client, names, b"one")


async def test_another_hash_of_rabbitmq_counts_when_the_shards_are_empty(bench: Bench) -> None:
    """As after an upgrade: groups were elsewhere before, and the exchange is gone with the restart."""
    clause("S-5", "or RabbitMQ has a version that spreads groups otherwise")
    client, names = await led(bench, 3)
    await publish(client, names, b"1")
    for name in (names.exchange, names.placement):
        await client.link.call(client.channel, ExchangeDelete(exchange=name))
    elsewhere = {"alternate-exchange": names.placed("of another version")}
    before = ExchangeDeclare(
        exchange=names.placement, exchange_type="fanout", durable=True, arguments=elsewhere
    )
    await client.link.call(client.channel, before)
    await led(bench, 3)
    client.send("in", b"refused", "group", exchange=names.exchange)
    with pytest.raises(AssertionError, match="NOT_FOUND"):
        await client.confirmed()
    consumer = GroupConsumer(bench.vhost.amqp_url, LANE, "c", prefix=bench.vhost.redis_prefix, sharded=True)
    flow = Flow(bench)
    running = asyncio.create_task(consumer.run(flow.handle, stop_on_signals=False))
    done = await reshard(bench, 3)
    assert done.returncode == 0, done.stderr
    client = await bench.client()
    await publish(client, names, b"2")
    await eventually(lambda: flow.got.get("group") == [1, 2], what="both, in their order")
    consumer.stop()
    await running


async def test_a_dispatcher_that_leads_meanwhile_keeps_the_shards(bench: Bench) -> None:
    """It makes the exchange again that the command has deleted, as it was."""
    client, names, holder = await led_with_one(bench)
    changing = asyncio.create_task(reshard(bench, 2))

    async def is_gone() -> bool:
        exchanges = bench.vhost.management(f"exchanges/{bench.vhost.name}")
        return names.exchange not in {each["name"] for each in exchanges}

    await eventually(is_gone, what="the command to begin")
    other = next(runner for name, runner in bench.runners.items() if name != holder)
    assert other._link is not None
    other._link.abort()
    await eventually(lambda: other.leaderships == 2, what="another leadership")
    consumer = await bench.joined("c", holder)
    await consumer.has(1)
    done = await changing
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    await publish(client, names, b"two")
    assert [copy.body for copy in await consumer.has(2)] == [b"one", b"two"]


async def test_the_number_that_there_is_changes_nothing(bench: Bench) -> None:
    await led(bench, 3)
    same = await reshard(bench, 3)
    assert (same.returncode, "already" in same.stdout) == (0, True)


@pytest.mark.parametrize("count", [4, 2])
async def test_shards_that_nobody_leads_are_refused(bench: Bench, count: int) -> None:
    """And a lane without shards has none to change."""
    await led(bench, 3 if count == 4 else 1)
    refused = await reshard(bench, count, "--timeout", "1s", configured=3 if count == 4 else 1)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
