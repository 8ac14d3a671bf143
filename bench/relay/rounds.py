"""One round: a fresh vhost, one contender, one load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import redis

from bench.relay import cpu
from bench.relay.contenders import INBOUND, Contender, Place, declare, delete_queues
from bench.relay.load import Publisher
from bench.relay.meter import Meter
from bench.relay.shapes import Shape
from dispatcher.errors import DispatcherError
from dispatcher.nodes import Management, Servers, with_vhost

#: Without an arrival for this long a round has failed.
STUCK_S: Final = 20.0
#: The last settles and acks are still on their way when the last message has arrived.
AFTERMATH_S: Final = 0.5
#: Before latencies are measured; not more than a quarter of the time that they are measured for.
WARM_UP_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Throughput:
    """One measured relay of a full queue."""

    messages: int
    per_second: float
    own_us: float | None  # CPU of the relay's own process, per message
    broker_us: float | None
    redis_us: float | None


@dataclass(frozen=True, slots=True)
class Latency:
    """From publish to arrival at a steady rate."""

    p50_ms: float
    p99_ms: float
    own_us: float | None


class Stage:
    """The servers, and what is asked of them in every round. `inbound` is the type of the inbound queue."""

    def __init__(self, servers: Servers, inbound: str = "classic") -> None:
        self._servers = servers
        self._inbound = inbound
        self._api = Management(servers.management_url)
        facts = cpu.node_facts(self._api)
        self._broker_pid = cpu.broker_pid(facts)
        #: Whether the broker has the Shovel plugin.
        plugins = facts.get("enabled_plugins", ())
        self.has_shovel = "rabbitmq_shovel" in plugins
        #: Whether it has the exchange that spreads messages over queues by a hash.
        self.has_consistent_hash = "rabbitmq_consistent_hash_exchange" in plugins
        self._redis = redis.Redis.from_url(servers.redis_url)
        rabbitmq, store = self._api.request("overview"), self._redis.info("server")
        self.versions = {"rabbitmq": rabbitmq["rabbitmq_version"], "redis": store["redis_version"]}

    async def throughput(self, kind: type[Contender], messages: int, shape: Shape) -> Throughput:
        """Relay a queue of `messages` that was filled before. Raises DispatcherError when it gets stuck."""
        meter = Meter(messages)
        async with self.place() as place, _opened(kind, place, meter) as contender:
            publisher = Publisher(INBOUND, shape=shape, exchange=contender.exchange)
            await publisher.open(place.amqp_url)
            await publisher.fill(messages)
            await publisher.close()
            broker_s, redis_s = self._broker_s(), self._redis_s()
            await contender.start()
            await _until_done(meter, contender)
            await asyncio.sleep(AFTERMATH_S)
            own_s, broker_s, redis_s = (
                contender.own_cpu_s(), _since(broker_s, self._broker_s()), self._redis_s() - redis_s,
            )  # fmt: skip
            return Throughput(
                messages, meter.rate, _us(own_s, messages), _us(broker_s, messages),
                _us(redis_s, messages),
            )  # fmt: skip

    async def latency(self, kind: type[Contender], messages: int, per_second: int, shape: Shape) -> Latency:
        """Send at a steady rate and see when each arrives."""
        meter = Meter(messages, latencies=True)
        async with self.place() as place, _opened(kind, place, meter) as contender:
            publisher = Publisher(INBOUND, shape=shape, exchange=contender.exchange)
            await publisher.open(place.amqp_url)
            await contender.start()
            await contender.begun()
            await asyncio.sleep(min(WARM_UP_S, messages / per_second / 4))
            own_s = contender.own_cpu_s()
            await publisher.send_steadily(messages, per_second)
            await _until_done(meter, contender)
            await publisher.close()
            assert meter.latencies_ms is not None
            cuts = statistics.quantiles(meter.latencies_ms.values(), n=100)
            return Latency(cuts[49], cuts[98], _us(_since(own_s, contender.own_cpu_s()), messages))

    def _broker_s(self) -> float | None:
        return None if self._broker_pid is None else cpu.used_s(self._broker_pid)

    def _redis_s(self) -> float:
        used = self._redis.info("cpu")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        """A vhost of its own with an empty inbound queue, gone after the block with all that is in it."""
        name = f"bench-relay-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        await asyncio.to_thread(self._api.create_vhost, name)
        url = with_vhost(self._servers.amqp_url, name)
        try:
            await declare(url, [INBOUND], self._inbound)
            yield Place(name, url, self._servers.redis_url, name, self._api)
        finally:
            await self._remove(name, url)
            for key in self._redis.scan_iter(match=f"*{name}*", count=1_000):
                self._redis.delete(key)

    async def _remove(self, vhost: str, url: str) -> None:
        """With a million messages in it RabbitMQ deletes a vhost too slowly for its management API."""
        queues = await asyncio.to_thread(self._api.request, f"queues/{vhost}?columns=name,exclusive")
        await delete_queues(url, [queue["name"] for queue in queues if not queue.get("exclusive")])
        await asyncio.to_thread(self._api.delete_vhost, vhost)


@contextlib.asynccontextmanager
async def _opened(kind: type[Contender], place: Place, meter: Meter) -> AsyncIterator[Contender]:
    contender = kind(place, meter)
    await contender.prepare()
    try:
        yield contender
    finally:
        await contender.close()


async def until_done(meter: Meter) -> None:
    """Wait for the last message. Raises DispatcherError when nothing has arrived for a while."""
    while not meter.done.is_set():
        before = meter.count
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(meter.done.wait(), STUCK_S)
        if meter.count == before and not meter.done.is_set():
            meter.failure = f"stuck after {meter.count} of {meter.expected} messages"
            break
    if meter.failure is not None:
        raise DispatcherError(meter.failure)


async def _until_done(meter: Meter, contender: Contender) -> None:
    """The same, and the relay's last words."""
    try:
        await until_done(meter)
    except DispatcherError as stuck:
        raise DispatcherError(f"{contender.name}: {stuck}\n{contender.last_words()}".strip()) from None


def _since(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _us(seconds: float | None, messages: int) -> float | None:
    return None if seconds is None else seconds / messages * 1e6
