"""What happens between two steps of a start or of a change of shards does no harm."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import BasicConsume, ExchangeDeclare, ExchangeDelete, QueueDeclare
from dispatcher.errors import BrokerUnavailable, CommandRefused, ConfigurationError
from dispatcher.service.shards import _remains, change_shards, open_shards
from dispatcher.service.topology import exchange_exists
from dispatcher.settings import LaneSettings
from dispatcher.wire.protocol import LaneNames
from dispatcher.wire.shards import ShardNames, shard_name
from tests.service.clients import Client
from tests.service.harness import LANE, Bench, lane
from tests.spec.lane_bench import clause
from tests.waiting import eventually

QUEUE = "in"
GROUPS = 20
#: In a change of shards.
STEPS_BEHIND_EMPTY = 10


class Interrupted(Link):
    """Each step has a channel of its own: before this one something else happens."""

    before = 0
    happens: Callable[[], Awaitable[None]]

    async def open_channel(self) -> int:
        self.before -= 1
        if not self.before:
            await self.happens()
        return await super().open_channel()


async def _killed() -> Link:
    """As the whole command is."""
    raise BrokerUnavailable("killed")


class Lost(Link):
    """It ends behind the end of this exchange, or else before somebody makes it."""

    exchange = ""
    is_lost_behind_end = True

    def call(self, channel: int, method: Any) -> Any:
        is_end = isinstance(method, ExchangeDelete) and method.exchange == self.exchange
        if is_end and self.is_lost_behind_end:
            return self._end(super().call(channel, method))
        if isinstance(method, ExchangeDeclare) and method.exchange == self.exchange and not method.passive:
            self.abort()
        return super().call(channel, method)

    async def _end(self, answer: Awaitable[Any]) -> None:
        await answer
        self.abort()
        raise BrokerUnavailable("lost")


@contextlib.asynccontextmanager
async def interrupted(bench: Bench) -> AsyncIterator[Interrupted]:
    link = await Interrupted.open(bench.rabbitmq, name="interrupted", on_events=_nothing)
    try:
        yield link
    finally:
        await link.close()


@pytest.fixture
async def client(bench: Bench) -> Client:
    """The lane's lock and inbound queue are there, and a message that nobody has."""
    made = await bench.client()
    for queue in (QUEUE, bench.names().lock):
        await made.link.call(made.channel, QueueDeclare(queue=queue, durable=True))
    made.send(QUEUE, b"one", "group")
    await made.confirmed()
    await made.has_ready(QUEUE, 1)
    return made


async def read(reader: Client, *queues: str) -> None:
    for queue in queues:
        await reader.link.call(reader.channel, BasicConsume(queue=queue, exclusive=True))


@pytest.mark.parametrize("begins", [True, False])
async def test_a_leader_that_begins_or_ends_meanwhile_hides_nothing(
    bench: Bench, client: Client, begins: bool
) -> None:
    lock = bench.names().lock

    async def lead(leader: Client) -> None:
        await read(leader, lock, QUEUE)
        await client.has_ready(QUEUE, 0)

    async def end(leader: Client) -> None:
        leader.link.abort()

        async def is_gone() -> bool:
            return not await client.consumers(lock) and await client.ready(QUEUE) == 1

        await eventually(is_gone, what="RabbitMQ to notice")

    for at in (1, 2, 3, 4, 67, 68):  # the 64 parking queues are asked for in between
        leader = await Client.open(bench.rabbitmq)
        if not begins:
            await lead(leader)
        async with interrupted(bench) as looking:
            looking.before = at
            looking.happens = partial(lead if begins else end, leader)
            assert await _remains(looking, bench.names(), [QUEUE]), at
        await end(leader)


async def test_what_a_leader_has_is_left_until_rabbitmq_takes_it_back(bench: Bench, client: Client) -> None:
    """RabbitMQ may take its lock back before that."""
    reader = await bench.client()
    await read(reader, QUEUE)
    await client.has_ready(QUEUE, 0)
    assert await _remains(client.link, bench.names(), [QUEUE])


class Way:
    """To the shards of a lane that nobody leads; messages of some groups wait in them."""

    def __init__(self, bench: Bench, client: Client, link: Link) -> None:
        self._bench, self._client, self._link = bench, client, link
        self._names = ShardNames(LANE, bench.vhost.redis_prefix)
        lanes: dict[str, Any] = {LANE: lane(shards=2)}
        self._lane = next(iter(bench.settings(**lanes).lanes.values()))

    async def begin(self) -> None:
        """Groups go to two empty shards."""
        await self.restart_rabbitmq()
        for exchange in self._names.kept:
            await self._delete(exchange)
        for number in range(1, 4):
            await self._client.declare(shard_name(QUEUE, number))
            await self._client.purge(shard_name(QUEUE, number))
        await self.open(2)

    def lane(self, count: int) -> LaneSettings:
        return self._lane.model_copy(update={"shards": count})

    async def open(self, count: int, link: Link | None = None, *, at_start: bool = True) -> bool:
        return await open_shards(
            link or self._link, self.lane(count), self._names.prefix, _killed, at_start=at_start
        )

    async def change(self, at: int) -> int:
        """To three shards; before this step the connection ends. How many steps were begun."""
        async with interrupted(self._bench) as link:

            async def end() -> None:
                link.abort()

            link.happens, link.before = end, at
            with contextlib.suppress(BrokerUnavailable, CommandRefused):
                await change_shards(
                    link, self.lane(3), self._names.prefix, _has_nothing, timeout_ms=60_000, anew=_killed
                )
            return at - link.before

    @property
    def exchange(self) -> str:
        return self._names.exchange

    async def leads(self) -> bool:
        return await exchange_exists(self._link, self.exchange)

    async def publish(self) -> None:
        if await self.leads():
            for group in range(GROUPS):
                self._client.send(QUEUE, b"%d" % group, f"{group}", exchange=self._names.exchange)
            await self._client.confirmed()

    async def restart_rabbitmq(self) -> None:
        """The exchange does not survive that."""
        await self._delete(self._names.exchange)

    async def _delete(self, exchange: str) -> None:
        await self._client.link.call(self._client.channel, ExchangeDelete(exchange=exchange))

    async def groups_are_whole(self) -> bool:
        """All messages of a group are in one shard."""
        found: dict[bytes, set[int]] = defaultdict(set)
        for number in range(1, 4):
            for message in await self._client.take(shard_name(QUEUE, number)):
                found[message.body].add(number)
        return all(len(shards) == 1 for shards in found.values())


@pytest.fixture
async def way(bench: Bench) -> AsyncIterator[Way]:
    async with interrupted(bench) as link:
        made = Way(bench, await bench.client(), link)
        await made.begin()
        yield made


async def test_a_change_that_is_cut_short_anywhere_leaves_each_group_in_one_shard(way: Way) -> None:
    """Also when RabbitMQ is restarted before anybody has seen what was done."""
    steps = await way.change(0)
    for at in range(steps - STEPS_BEHIND_EMPTY + 1, steps + 2):
        await way.begin()
        await way.change(at)
        await way.publish()
        for configured in (2, 3):
            await way.restart_rabbitmq()
            with contextlib.suppress(ConfigurationError):
                await way.open(configured)
            await way.publish()
        assert await way.groups_are_whole(), (at, steps)


@pytest.mark.parametrize("is_lost_behind_end", [True, False])
async def test_a_change_leads_producers_back_wherever_its_connection_ends(
    bench: Bench, way: Way, is_lost_behind_end: bool
) -> None:
    """If it can't, the command says so."""
    for anew in (partial(Link.open, bench.rabbitmq, name="anew", on_events=_nothing), _killed):
        await way.publish()
        link = await Lost.open(bench.rabbitmq, name="lost", on_events=_nothing)
        link.exchange, link.is_lost_behind_end = way.exchange, is_lost_behind_end
        with pytest.raises(CommandRefused):
            await change_shards(
                link, way.lane(3), bench.vhost.redis_prefix, _has_nothing, timeout_ms=500, anew=anew
            )
        assert await way.leads() is (anew is not _killed)
    await way.open(2)
    await way.publish()
    assert await way.groups_are_whole()


async def test_a_start_that_misses_a_queue_has_proven_nothing(bench: Bench, way: Way) -> None:
    clause("S-4", "a start proves nothing and leads producers nowhere")
    client = await bench.client()
    await way.change(0)
    assert await way.open(3)
    await client.delete(shard_name(QUEUE, 2))
    assert not await way.open(3)
    with pytest.raises(BrokerUnavailable):  # the third one would have no leader
        await way.open(2)


@pytest.mark.parametrize("configured", [2, 3])
async def test_a_leader_that_begins_while_the_exchange_goes_leads_no_group_elsewhere(
    bench: Bench, way: Way, configured: int
) -> None:
    at, steps = 0, 1
    while at < steps:
        at += 1
        await way.begin()
        await way.publish()
        async with interrupted(bench) as link:
            link.happens, link.before = way.restart_rabbitmq, at
            with contextlib.suppress(ConfigurationError):
                await way.open(configured, link, at_start=False)
            steps = at - link.before
        await way.publish()
        assert await way.groups_are_whole(), (at, steps)


async def _has_nothing(_: LaneNames) -> list[str]:
    return []


def _nothing(_: Any) -> None:
    """No events are waited for."""
