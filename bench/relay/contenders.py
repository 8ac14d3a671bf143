"""Who is measured: each takes messages from `inbound` and hands them to four consumers."""

from __future__ import annotations

import asyncio
import os
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import quote

from pamqp import commands

from bench.relay import cpu
from bench.relay.consumers import AckingConsumer, PlainConsumer, ProtocolConsumer
from bench.relay.meter import Meter
from dispatcher.amqp.link import Link
from dispatcher.client.membership import BUNDLE
from dispatcher.demo.dispatcher_process import DispatcherProcess
from dispatcher.nodes import Management
from dispatcher.nodes.process import GuardedProcess
from dispatcher.settings import RabbitSettings
from dispatcher.wire.bundle import BundleLimits
from dispatcher.wire.protocol import LaneNames
from dispatcher.wire.shards import ShardNames

INBOUND: Final = "inbound"
CONSUMERS: Final = 4
SHOVEL_PREFETCH: Final = 1_000
LANE: Final = "bench"
#: A Shovel or an aio-pika relay is there in well under a second.
CONSUMER_POLL_S: Final = 0.02
#: A dispatcher leads half a second after its start, on a quiet machine.
LEADS_POLL_S: Final = 0.1
#: After its start a dispatcher still imports and looks around; what that costs is measured apart.
SETTLED_POLL_S: Final = 0.1
SETTLED_POLLS: Final = 5


@dataclass(frozen=True, slots=True)
class Place:
    """A vhost of the run's own, and a prefix for its Redis keys."""

    vhost: str
    amqp_url: str
    redis_url: str
    redis_prefix: str
    api: Management


class Contender(ABC):
    """One way of relaying. Used once: `prepare`, `start`, `own_cpu_s` any time, `close`."""

    name: ClassVar[str]

    def __init__(self, place: Place, meter: Meter) -> None:
        self._place = place
        self._meter = meter
        self._consumers: list[PlainConsumer | ProtocolConsumer] = []

    @property
    def exchange(self) -> str:
        """Where messages are published, with the inbound queue as their routing key."""
        return ""

    @abstractmethod
    async def prepare(self) -> None:
        """Everything that is needed before the inbound queue is filled."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to relay, the consumers being there."""

    async def begun(self) -> None:  # noqa: B027 - most have begun when `start` returns
        """Return once it relays; looking costs it some CPU time."""

    @abstractmethod
    async def stop(self) -> None:
        """End the relay."""

    def own_cpu_s(self) -> float | None:
        """CPU used for relaying so far, in a process of its own; None: it runs inside the broker."""
        return None

    def last_words(self) -> str:
        """The end of the relay's log, for when it got stuck."""
        return ""

    async def close(self) -> None:
        await self.stop()
        for consumer in self._consumers:
            await consumer.close()

    async def _consume(self, queues: list[str], kind: type[PlainConsumer] = PlainConsumer) -> None:
        for queue in queues:
            consumer = kind(self._meter)
            await consumer.open(self._place.amqp_url, queue)
            self._consumers.append(consumer)


async def declare(url: str, queues: list[str], kind: str | None = None) -> None:
    """Declare durable queues of this type; None: that of the broker's default, classic."""
    link = await Link.open(RabbitSettings(url=url), name="bench", on_events=lambda _: None)
    channel = await link.open_channel()
    for queue in queues:
        declare = commands.Queue.Declare(queue=queue, durable=True)
        if kind is not None:
            declare.arguments = {"x-queue-type": kind}
        await link.call(channel, declare)
    await link.close()


async def delete_queues(url: str, queues: list[str]) -> None:
    """Delete them with all that is in them."""
    link = await Link.open(RabbitSettings(url=url), name="bench", on_events=lambda _: None)
    channel = await link.open_channel()
    for queue in queues:
        await link.call(channel, commands.Queue.Delete(queue=queue))
    await link.close()


async def until_consumed(url: str, queue: str) -> None:
    """Wait until somebody consumes the queue."""
    link = await Link.open(RabbitSettings(url=url), name="bench", on_events=lambda _: None)
    channel = await link.open_channel()
    question = commands.Queue.Declare(queue=queue, passive=True)
    while not (await link.call(channel, question)).consumer_count:  # noqa: ASYNC110 - the broker tells nobody
        await asyncio.sleep(CONSUMER_POLL_S)
    await link.close()


class Dispatcher(Contender):
    """This product with everything on: journal in Redis, confirms, settles."""

    name = "dispatcher"
    policy: ClassVar[str]
    inbound: ClassVar[dict[str, Any]] = {"queue": INBOUND}
    keys: ClassVar[dict[str, Any]] = {}  # of the lane, beside its policy
    bundle: ClassVar[BundleLimits | None] = BUNDLE  # that its consumers ask for
    process_type: ClassVar[type[DispatcherProcess]] = DispatcherProcess

    async def prepare(self) -> None:
        self._process = self.process_type(self._configuration())
        await asyncio.to_thread(self._process.start)  # declares the lane's queues
        self._start_cpu_s = await self._settled_cpu_s()
        await asyncio.to_thread(self._process.stop)
        for number in range(CONSUMERS):
            names = self._lane(number)
            self._consumers.append(ProtocolConsumer(self._meter, names, f"consumer-{number}", self.bundle))

    def _configuration(self) -> dict[str, Any]:
        place = self._place
        lane: dict[str, Any] = {"policy": self.policy, "inbound": [self.inbound], **self.keys}
        return {
            "rabbitmq": {"url": place.amqp_url}, "redis": {"url": place.redis_url},
            "prefix": place.redis_prefix, "lanes": {LANE: lane},
        }  # fmt: skip

    def _lane(self, number: int) -> LaneNames:
        """That the consumer with this number joins."""
        return LaneNames(LANE, self._place.redis_prefix)

    async def start(self) -> None:
        await self._open_consumers()
        await asyncio.to_thread(self._process.launch)

    async def _open_consumers(self) -> None:
        for consumer in self._consumers:
            assert isinstance(consumer, ProtocolConsumer)
            await consumer.open(self._place.amqp_url)

    async def begun(self) -> None:
        while not await asyncio.to_thread(self._process.leads):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(LEADS_POLL_S)

    def own_cpu_s(self) -> float:
        return cpu.used_s(self._process.pid) - self._start_cpu_s

    def last_words(self) -> str:
        return self._process.log()

    async def stop(self) -> None:
        await asyncio.to_thread(self._process.close)

    async def _settled_cpu_s(self) -> float:
        """What a start costs, without any message."""
        used = -1.0
        same = 0
        while same < SETTLED_POLLS:
            await asyncio.sleep(SETTLED_POLL_S)
            before, used = used, cpu.used_s(self._process.pid)
            same = same + 1 if used - before < SETTLED_POLL_S / 5 else 0
        return used


class Exclusive(Dispatcher):
    name = "dispatcher, exclusive"
    policy = "exclusive"


class Sequenced(Dispatcher):
    name = "dispatcher, sequenced"
    policy = "sequenced"


class ExclusiveSingle(Exclusive):
    """With consumers that don't ask for bundles: each copy comes alone."""

    name = "dispatcher, exclusive, single copies"
    bundle = None


class SequencedSingle(Sequenced):
    """The same."""

    name = "dispatcher, sequenced, single copies"
    bundle = None


class FixedWindow(Exclusive):
    """As much of a group may be out as its consumer's prefetch lets out: what an adaptive window costs."""

    name = "dispatcher, exclusive, fixed windows"
    keys: ClassVar[dict[str, Any]] = {"group_window": {"initial": 60_000, "max": 60_000}, "steal_after": None}


class ExclusiveShards(Exclusive):
    """Four shards in one process, with a consumer in each."""

    name = "dispatcher, exclusive, 4 shards"
    inbound: ClassVar[dict[str, Any]] = {"queue": INBOUND, "declare": True}
    keys: ClassVar[dict[str, Any]] = {"shards": CONSUMERS}

    @property
    def exchange(self) -> str:
        return ShardNames(LANE, self._place.redis_prefix).exchange

    def _lane(self, number: int) -> LaneNames:
        return ShardNames(LANE, self._place.redis_prefix).shard(number + 1)


class TwoShards(ExclusiveShards):
    """Two shards in one process, with two of the consumers in each, who come when the shards are led."""

    name = "dispatcher, exclusive, 2 shards"
    keys: ClassVar[dict[str, Any]] = {"shards": 2}

    def _lane(self, number: int) -> LaneNames:
        return super()._lane(number % 2)

    async def start(self) -> None:
        await asyncio.to_thread(self._process.launch)
        await super().begun()
        await self._share_out()
        await self._open_consumers()

    async def _share_out(self) -> None:
        """One process leads both."""


class TwoProcesses(TwoShards):
    """Each shard in a process of its own: two replicas, which share them out."""

    name = "dispatcher, exclusive, 2 shards in 2 processes"

    async def prepare(self) -> None:
        await super().prepare()
        self._other = self.process_type(self._configuration())

    async def _share_out(self) -> None:
        await asyncio.to_thread(self._other.launch)
        await self.begun()

    async def begun(self) -> None:
        """Each replica leads a shard."""
        while (  # noqa: ASYNC110 - they tell nobody
            await asyncio.to_thread(self._process.led),
            await asyncio.to_thread(self._other.led),
        ) != (1, 1):
            await asyncio.sleep(LEADS_POLL_S)

    def own_cpu_s(self) -> float:
        return super().own_cpu_s() + cpu.used_s(self._other.pid) - self._start_cpu_s

    async def stop(self) -> None:
        await asyncio.to_thread(self._other.close)
        await super().stop()


class Shovel(Contender):
    """RabbitMQ's own relay, inside the broker, without any grouping, to one durable queue.

    Its consumers ack what they have processed: like the dispatcher's, they lose nothing when they die.
    """

    name = "Shovel"
    kind: ClassVar[type[PlainConsumer]] = AckingConsumer

    async def prepare(self) -> None:
        await declare(self._place.amqp_url, ["target"])

    async def start(self) -> None:
        await self._consume(["target"] * CONSUMERS, self.kind)
        uri = f"amqp:///{quote(self._place.vhost, safe='')}"
        shovel = {
            "src-protocol": "amqp091", "src-uri": uri, "src-queue": INBOUND,
            "src-prefetch-count": SHOVEL_PREFETCH, "dest-protocol": "amqp091", "dest-uri": uri,
            "dest-queue": "target", "ack-mode": "on-confirm",
        }  # fmt: skip
        await asyncio.to_thread(self._place.api.request, self._path(), "PUT", {"value": shovel})
        await until_consumed(self._place.amqp_url, INBOUND)

    async def stop(self) -> None:
        await asyncio.to_thread(self._place.api.request, self._path(), "DELETE")

    def _path(self) -> str:
        return f"parameters/shovel/{quote(self._place.vhost, safe='')}/bench"


class ShovelAutomatic(Shovel):
    """The same with automatic acks: what a consumer has received is lost when it dies."""

    name = "Shovel, automatic acks"
    kind = PlainConsumer


class Naive(Contender):
    """aio-pika, a callback per message, to four durable queues chosen by the group."""

    name = "naive aio-pika"

    async def prepare(self) -> None:
        self._targets = [f"target-{number}" for number in range(CONSUMERS)]
        await declare(self._place.amqp_url, self._targets)
        self._process = GuardedProcess("naive")

    async def start(self) -> None:
        await self._consume(self._targets)
        command = [sys.executable, "-m", "bench.relay.naive", self._place.amqp_url, INBOUND, *self._targets]
        self._process.start(command, dict(os.environ))
        await until_consumed(self._place.amqp_url, INBOUND)
        self._start_cpu_s = cpu.used_s(self._pid)

    @property
    def _pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def own_cpu_s(self) -> float:
        return cpu.used_s(self._pid) - self._start_cpu_s

    async def stop(self) -> None:
        await asyncio.to_thread(self._process.close)


class Direct(Contender):
    """No relay at all: consumers on the inbound queue. What the others' latency is compared with."""

    name = "no relay"

    async def prepare(self) -> None:
        pass

    async def start(self) -> None:
        await self._consume([INBOUND] * CONSUMERS)

    async def stop(self) -> None:
        pass


class DirectAcking(Direct):
    """The same, and the consumers ack: RabbitMQ stores what it would not have to store otherwise."""

    name = "no relay, acks"

    async def start(self) -> None:
        await self._consume([INBOUND] * CONSUMERS, AckingConsumer)
