"""Everything that runs: servers, proxies, dispatchers, consumers, producers, each in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from pamqp import commands

from dispatcher.errors import DispatcherError
from dispatcher.judge.judge import Move
from dispatcher.nodes.local import LocalNode
from dispatcher.nodes.local_rabbitmq import LocalRabbitMQ
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.nodes.servers import PrivateServers
from dispatcher.settings import RabbitSettings
from tests import forking
from tests.chaos.cluster import ClusterServers
from tests.chaos.decisions import Decision
from tests.chaos.fail_overs import FailOver, Proxied
from tests.chaos.lanes import LaneOnStage
from tests.chaos.parts import Eviction, NodeFault, Outage, Process, Replica
from tests.chaos.plan import CONCURRENT, DISPATCHER_HEARTBEAT_S, READER_KINDS, READERS, Plan
from tests.chaos.proxies import Proxies
from tests.client.tcp_proxy import TcpProxy
from tests.recovery.scene import DELIVERY_LIMIT
from tests.service.clients import Client
from tests.service.harness import DispatcherProcess, document
from tests.waiting import eventually

PREFIX = "dispatch"
#: Where messages are rerouted to; it is bound to each lane's target by the lane's name.
EXCHANGE = "rerouted"
PREFETCH = 30
CONSUMERS = ("async", "blocking", "iterating", "async", "blocking", "iterating", "bare", "bare")
PRODUCERS = ("raw", "async", "blocking", "raw")
#: Of a hand-over lane.
HANDED_PRODUCERS = ("raw", "async")
#: A bare consumer does one thing after the other.
BARE_WORK_MS = 4.0
#: Of consumers that do not use the SDK.
MODULES = {
    "bare": "tests.chaos.bare_worker", **dict.fromkeys(READER_KINDS, "tests.chaos.reading_worker")
}  # fmt: skip
START_TIMEOUT_S = 60.0
#: A consumer that was told to leave finishes what it has in hand and settles it.
STOP_TIMEOUT_S = 45.0


class Stage:
    """The running system, and what was done to it. All times are CLOCK_MONOTONIC."""

    def __init__(
        self, folder: Path, plan: Plan, lanes: list[LaneOnStage], rate: float, ledger: Path | None = None,
        redis: FailOver | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.plan = plan
        self.lanes = lanes
        self.rate = rate
        self.ledger = ledger  # where it goes; None: there is none
        self.cluster = (
            ClusterServers(plan.settings.partitions, redis or Proxied()) if plan.on_cluster else None
        )
        self.servers = self.cluster or PrivateServers()
        self.replicas: list[Replica] = []
        self.consumers: list[Process] = []
        self.producers: list[Process] = []
        self.rabbitmq_outages: list[Outage] = []
        self.redis_outages: list[Outage] = []
        self.node_faults: list[NodeFault] = []  # of a cluster
        self.moves: dict[str, list[Move]] = {lane.name: [] for lane in lanes}
        self.evictions: list[Eviction] = []
        self.decisions: dict[str, list[Decision]] = {lane.name: [] for lane in lanes}
        self.shard_of: dict[str, str] = {}  # by groups; none: no lane has shards
        self.problems: list[str] = []  # that faults ran into
        self.unanswered: dict[str, list[str]] = {lane.name: [] for lane in lanes}  # orders to the lane
        #: When, and by which order a flag of which lane was undone.
        self.undone: list[tuple[float, LaneOnStage, str, dict[str, Any]]] = []
        self.changes: dict[str, Any] = {}  # of lane keys since the beginning
        self._lives: dict[str, int] = {}
        self._stack = AsyncExitStack()

    @property
    def nodes(self) -> list[LocalRabbitMQ]:
        """Of RabbitMQ."""
        return [self.servers.rabbitmq] if self.cluster is None else [*self.cluster.nodes]

    @property
    def redis_servers(self) -> list[LocalRedis]:
        return [self.servers.redis] if self.cluster is None else [*self.cluster.fail_over.servers]

    def redis_outages_of(self, lane: LaneOnStage) -> list[Outage]:
        """Those of the Redis that has this lane."""
        return [o for o in self.redis_outages if o.lanes is None or lane.name in o.lanes]

    @property
    def rabbitmq(self) -> RabbitSettings:
        """RabbitMQ, not through a proxy."""
        if self.cluster is None:
            return RabbitSettings(url=self.servers.amqp_url)
        urls = tuple(node.amqp_url for node in self.nodes)
        return RabbitSettings(urls=urls, heartbeat_ms=DISPATCHER_HEARTBEAT_S * 1_000)

    # -- beginning --

    async def begin(self) -> None:
        """Start everything; returns when messages are handled."""
        await asyncio.to_thread(self.servers.start)
        client = await Client.open(self.rabbitmq)
        for lane in self.lanes:
            await self._declare_inbound(client, lane)
            await self._declare_target(client, lane)
        await client.close()
        for number in range(2):
            await self._start_replica(f"dispatcher{number}")
        await eventually(lambda: all(map(self.leader, self.lanes)), START_TIMEOUT_S, "a leader of every lane")
        for node in self.nodes:
            await asyncio.to_thread(node.sync_definitions)
        for lane in self.lanes:
            if lane.hands_over:
                for who, kind in zip(READERS, READER_KINDS, strict=True):
                    await self.start_consumer(lane, who, kind)
        for lanes, consumers, producers in (
            ([lane for lane in self.lanes if not lane.hands_over], CONSUMERS, PRODUCERS),
            ([lane for lane in self.lanes if lane.hands_over], (), HANDED_PRODUCERS),
        ):
            for number, kind in enumerate(consumers if lanes else ()):
                await self.start_consumer(lanes[number % len(lanes)], f"c{number}", kind)
            for kind in producers if lanes else ():
                number = len(self.producers)
                await self.start_producer(lanes[number % len(lanes)], f"p{number}", kind)
        await eventually(lambda: self.handled() > 100, START_TIMEOUT_S, "the first messages to be handled")

    async def _declare_inbound(self, client: Client, lane: LaneOnStage) -> None:
        high, low = lane.queues
        if self.cluster is None:
            await client.declare(high, x_queue_version=self.plan.settings.queue_version)
        for queue in lane.queues if self.cluster else (low,):
            await client.declare(queue, x_queue_type="quorum", x_delivery_limit=DELIVERY_LIMIT)

    async def _declare_target(self, client: Client, lane: LaneOnStage) -> None:
        kind = {"x_queue_type": "quorum", "x_delivery_limit": DELIVERY_LIMIT} if self.cluster else {}
        await client.declare(lane.target, **kind)
        call, channel = client.link.call, client.channel
        await call(channel, commands.Exchange.Declare(exchange=EXCHANGE, durable=True))
        await call(channel, commands.Queue.Bind(queue=lane.target, exchange=EXCHANGE, routing_key=lane.name))

    async def _start_replica(self, name: str) -> None:
        rabbitmq = await self._proxy()
        redis = await self._stack.enter_async_context(TcpProxy(self.servers.redis_url))
        replica = Replica(name, DispatcherProcess(self.folder, name, {}), rabbitmq, redis)
        self.replicas.append(replica)
        self.start(replica)

    def start(self, replica: Replica) -> None:
        """Start a dispatcher that does not run, with the configuration as it is now."""
        replica.start(self.configuration(replica))

    def configuration(self, replica: Replica) -> dict[str, Any]:
        """What its file should say now."""
        changes = dict(self.changes)
        weights = changes.pop("weights", (3, 1))
        lanes = {}
        for lane in self.lanes:
            queues = zip(lane.configured_queues, weights, strict=True)
            inbound = [{"queue": queue, "weight": weight} for queue, weight in queues]
            keys = self.plan.settings.lane_keys(lane.policy)
            pause = changes.get("pause", keys["rebalance"]["pause"])
            own_timeout = lane.hands_over or self.evicts_after_s(lane) is not None
            unknown = {"pause", "ack_timeout"} if own_timeout else {"pause"}
            changed = {key: value for key, value in changes.items() if key not in unknown}
            keys |= {"rebalance": {**keys["rebalance"], "pause": pause}, **changed}
            shards = {"shards": lane.shards} if lane.shards > 1 else {}
            lanes[lane.whole] = {"inbound": inbound, **keys, **shards}
        redis_url = replica.redis.url
        if self.cluster is not None:
            redis_url = self.cluster.fail_over.url(redis_url)
        written = document(replica.rabbitmq.url, redis_url, PREFIX, lanes)
        if isinstance(replica.rabbitmq, Proxies):
            written["rabbitmq"] = {"urls": replica.rabbitmq.urls}
        written["rabbitmq"]["heartbeat"] = f"{DISPATCHER_HEARTBEAT_S}s"
        if self.ledger is not None:
            written["ledger"] = {"path": str(self.ledger)}
        return written

    # -- dispatchers --

    def stops(self, lane: LaneOnStage) -> bool:
        """Whether its groups stop at what has failed."""
        return lane.policy in self.plan.settings.stopping

    def keeps(self, lane: LaneOnStage) -> bool:
        """Whether it keeps what comes in."""
        settings = self.plan.settings
        return settings.readers_keep if lane.hands_over else lane.policy in settings.keeping

    def checks(self, lane: LaneOnStage) -> bool:
        """Whether it reports numbers that don't follow."""
        return lane.policy in self.plan.settings.checking

    def evicts_after_s(self, lane: LaneOnStage) -> float | None:
        """For how long a consumer may have a message unsettled; None: for ever."""
        settings = self.plan.settings
        return settings.ack_timeout_s if lane.policy in settings.evicting else None

    def reads_on_hangup(self, replica: Replica) -> bool:
        """It has read its file, and will read it again on SIGHUP."""
        return replica.process.is_alive() and bool(replica.process.logged("dispatcher_started"))

    def leader(self, lane: LaneOnStage) -> Replica | None:
        """Who leads this lane, as far as the logs of the living say."""
        led = {
            replica: [r["timestamp"] for r in replica.process.logged("lane_led") if r["lane"] == lane.name]
            for replica in self.replicas
            if replica.process.is_alive()
        }
        return max((r for r in led if led[r]), key=lambda r: led[r][-1], default=None)

    async def is_led(self) -> bool:
        """Every lane's leader says so itself: it reaches RabbitMQ and Redis."""
        for lane in self.lanes:
            leader = self.leader(lane)
            if leader is None:
                return False
            try:
                _, text = await asyncio.to_thread(leader.process.get, "/readyz")
            except (OSError, AssertionError):
                return False
            if f"{lane.name}: leading" not in text:
                return False
        return True

    # -- consumers and producers --

    async def start_consumer(self, lane: LaneOnStage, who: str, kind: str) -> Process:
        module = MODULES.get(kind, "tests.recovery.worker")
        name, proxy = await self._prepare(who)
        arguments = [
            kind, proxy.url, PREFIX, lane.name, who, str(PREFETCH), str(self.folder / f"{name}.record"),
            str(BARE_WORK_MS if kind in MODULES else self.plan.settings.work_ms), "raising",
            *(["alike"] if lane.policy == CONCURRENT else []),
        ]  # fmt: skip
        process = Process(name, who, lane, kind, proxy, self._spawn(name, module, arguments))
        self.consumers.append(process)
        return process

    async def start_producer(self, lane: LaneOnStage, who: str, kind: str) -> Process:
        name, proxy = await self._prepare(who)
        seed = self.plan.producer_seed + len(self.producers)
        groups, rate = str(self.plan.settings.groups), str(self._rate_each())
        arguments = [
            kind, proxy.url, ",".join(lane.configured_queues), groups, rate, name,
            str(self.folder / f"{name}.produced"), str(seed), lane.exchange,
        ]  # fmt: skip
        process = Process(name, who, lane, kind, proxy, self._spawn(name, "tests.chaos.producer", arguments))
        self.producers.append(process)
        return process

    def _rate_each(self) -> float:
        """Of the rate that is for all producers together."""
        kinds = [PRODUCERS if not lane.hands_over else HANDED_PRODUCERS for lane in self.lanes]
        return self.rate / sum(map(len, set(kinds)))

    async def _prepare(self, who: str) -> tuple[str, TcpProxy | Proxies]:
        number = self._lives[who] = self._lives.get(who, 0) + 1
        return f"{who}-{number}", await self._proxy()

    async def _proxy(self) -> TcpProxy | Proxies:
        """Of one process, to RabbitMQ."""
        ways = [await self._stack.enter_async_context(TcpProxy(node.amqp_url)) for node in self.nodes]
        return Proxies(ways) if self.cluster else ways[0]

    def _spawn(self, name: str, module: str, arguments: list[str]) -> forking.Forked:
        with (self.folder / f"{name}.log").open("wb") as log:
            return forking.start(module, arguments, log)

    def living(self, processes: list[Process]) -> list[Process]:
        return [process for process in processes if process.alive]

    def handled(self) -> int:
        return sum(path.read_bytes().count(b"\nended ") for path in self.folder.glob("*.record"))

    # -- ending --

    async def heal(self) -> None:
        """Everything is there again and nothing is held back."""
        for server in (*self.nodes, *self.redis_servers):
            await self.start_again(server)
        for process in [*self.living(self.consumers), *self.living(self.producers)]:
            process.proxy.resume()
            process.signal(signal.SIGCONT)
            process.go_on()
        for replica in self.replicas:
            replica.rabbitmq.resume()
            replica.redis.resume()
            replica.signal(signal.SIGCONT)
            if not replica.process.is_alive():
                self.start(replica)
        for lane in self.lanes:
            if not any(process.lane is lane for process in self.living(self.consumers)):
                who, kind = (
                    (READERS[0], READER_KINDS[0]) if lane.hands_over else (f"last-{lane.name}", "async")
                )
                await self.start_consumer(lane, who, kind)

    async def start_again(self, server: LocalNode) -> bool:
        """Start a server that may have ended. One that does not come up in its time is killed and started
        once more, as its operator would: False then. Raises DispatcherError when that fails too."""
        try:
            await asyncio.to_thread(server.start)
        except DispatcherError:
            self.keep_logs(server, "first-attempt-")
            await asyncio.to_thread(server.start)
            return False
        return True

    async def stop(self, processes: list[Process]) -> list[str]:
        """SIGTERM, and wait; the names of those that did not end in order."""
        for process in processes:
            process.left_at = time.monotonic()
            if process.kind == "bare":
                process.killed_at = process.left_at  # it does not know how to leave
            process.signal(signal.SIGTERM)
        with contextlib.suppress(AssertionError):
            await eventually(lambda: not any(p.alive for p in processes), STOP_TIMEOUT_S)
        wrong = [p.name for p in processes if p.popen.poll() not in (0, -signal.SIGTERM)]
        for process in processes:
            process.kill()
        return wrong

    async def close(self) -> None:
        """End every process; whatever happened before."""
        for process in [*self.consumers, *self.producers]:
            process.kill()
        for replica in self.replicas:
            replica.process.close()
        await self._stack.aclose()
        for server in (*self.nodes, *self.redis_servers):
            self.keep_logs(server)
        await asyncio.to_thread(self.servers.close)

    def keep_logs(self, server: LocalNode, when: str = "") -> None:
        """They tell why a server did not start again, or what it did before it was lost."""
        alike: list[LocalNode] = [*self.nodes] if server in self.nodes else [*self.redis_servers]
        which = str(alike.index(server)) if len(alike) > 1 else ""
        for log in server.logs():
            shutil.copyfile(log, self.folder / f"{server.name}{which}-{when}{log.name}")


@contextlib.asynccontextmanager
async def staged(
    folder: Path,
    plan: Plan,
    lanes: list[LaneOnStage],
    rate: float,
    ledger: Path | None = None,
    redis: FailOver | None = None,
) -> AsyncIterator[Stage]:
    stage = Stage(folder, plan, lanes, rate, ledger, redis)
    try:
        await stage.begin()
        yield stage
    finally:
        await stage.close()
