"""Everything of a recovery test: dispatchers, consumer processes, load, and the verdict on the record."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from dispatcher.cli.command_client import ask
from dispatcher.cli.rabbitmq import connected
from dispatcher.core.bounds import GROUPS_PER_PAGE_MAX
from dispatcher.demo.checker import steal_after_s
from dispatcher.judge.judge import Forgotten, Story, say_number, violations
from dispatcher.judge.record import STARTED, HandlingRecord, MessageKey, read_record
from dispatcher.settings import RabbitSettings
from dispatcher.wire.protocol import LaneNames
from tests import forking
from tests.conftest import Vhost
from tests.recovery.load import CLUSTER_HEARTBEAT_S, NumberingProducer
from tests.recovery.rules import FAILED, is_closing
from tests.service.clients import Client
from tests.service.harness import (
    ASK_TIMEOUT_MS,
    LANE,
    START_S,
    DispatcherProcess,
    document,
    log_records,
)
from tests.service.protocol_consumer import read_properties
from tests.waiting import eventually

QUEUES = ["high", "low"]
GROUPS = 40
WORK_MS = 4
#: Of the consumers that are there from the beginning, see tests.recovery.worker.
KINDS = ("async", "async", "blocking")
PREFETCH = 20
RATE = 200
#: More than consumers have in hand: so many only follow if the lane goes on.
MORE = 100
#: Newer brokers drop a message at the 21st lost connection if nobody says otherwise.
DELIVERY_LIMIT = 100_000
#: When no handling has begun for so long at the end, nothing more comes. Each look reads the whole record.
PATIENCE_S = 60.0
LOOK_S = 0.5


@dataclass(slots=True)
class Life:
    """One process of a consumer."""

    name: str
    consumer_id: str
    process: forking.Forked


class Scene:
    """A running system that a test hurts."""

    def __init__(
        self,
        vhost: Vhost,
        folder: Path,
        policy: str,
        seed: int,
        rate: float = RATE,
        urls: tuple[str, ...] = (),
    ) -> None:
        """`urls`: of all nodes of a cluster; then all inbound queues are quorum queues."""
        self.vhost = vhost
        self.urls = urls
        self.folder = folder
        self.policy = policy
        self.random = random.Random(seed)
        self.rabbitmq = (
            RabbitSettings(urls=urls, heartbeat_ms=CLUSTER_HEARTBEAT_S * 1_000)
            if urls
            else RabbitSettings(url=vhost.amqp_url)
        )
        self.producer = NumberingProducer(self.rabbitmq, QUEUES, GROUPS, rate, seed)
        self.dispatchers: list[DispatcherProcess] = []
        self.lives: list[Life] = []
        self.killed_at: dict[str, float] = {}  # by the life's name, on the clock of the record
        self.left_at: dict[str, float] = {}
        self.dispatcher_killed_at: list[float] = []  # seconds since 1970
        self.forgotten: list[Forgotten] = []
        self.work_ms = WORK_MS
        self.kinds: tuple[str, ...] = KINDS
        self._lives_of: dict[str, int] = {}
        self._counted: dict[Path, tuple[int, int]] = {}  # of each record: bytes read, handlings in them

    # -- dispatchers --

    def start_dispatchers(self, count: int, heartbeat: str = "10s", **keys: Any) -> None:
        """`heartbeat` is that of their connections to RabbitMQ, `keys` are more keys of the lane."""
        inbound = [{"queue": q, "weight": w, "declare": True} for q, w in zip(QUEUES, (3, 1), strict=True)]
        one_lane = {"policy": self.policy, "inbound": inbound, **keys}
        for number in range(count):
            settings = document(
                self.vhost.amqp_url, self.vhost.redis_url, self.vhost.redis_prefix, {LANE: one_lane}
            )
            if self.urls:
                settings["rabbitmq"] = {"urls": list(self.urls)}
            settings["rabbitmq"]["heartbeat"] = heartbeat
            dispatcher = DispatcherProcess(self.folder, f"dispatcher{number}", settings)
            self.dispatchers.append(dispatcher)
            dispatcher.start()

    async def begin(self, dispatchers: int, **options: Any) -> None:
        """Start everything; returns when messages flow. One of the two inbound queues is a quorum queue,
        under `sequenced` as RabbitMQ 3 makes it: without a delivery limit."""
        async with Client.opened(self.rabbitmq) as client:
            without = self.policy == "sequenced" and client.broker_version < (4,)
            limit = {} if without else {"x_delivery_limit": DELIVERY_LIMIT}
            for queue in QUEUES if self.urls else QUEUES[1:]:
                await client.declare(queue, x_queue_type="quorum", **limit)
        self.start_dispatchers(dispatchers, **options)
        await self.led()
        self.start_consumers()
        await self.has_consumers(len(self.lives))
        self.producer.start()
        await self.handled(MORE)

    def leading(self) -> DispatcherProcess | None:
        """Who leads now, as far as the logs say: the latest of those that are alive."""
        since = {
            d: led[-1]["timestamp"]
            for d in self.dispatchers
            if d.is_alive() and (led := d.logged("lane_led"))
        }
        return max(since, key=lambda dispatcher: since[dispatcher], default=None)

    async def led(self, timeout_s: float = START_S) -> DispatcherProcess:
        await eventually(lambda: self.leading() is not None, timeout_s, f"a leader: {self._logs()}")
        leader = self.leading()
        assert leader is not None
        return leader

    def kill_dispatcher(self, dispatcher: DispatcherProcess) -> None:
        self.dispatcher_killed_at.append(time.time())
        dispatcher.kill9()

    async def followed(self, leader: DispatcherProcess, timeout_s: float = START_S) -> DispatcherProcess:
        """Wait until another one than `leader` leads."""
        await eventually(lambda: self.leading() not in (None, leader), timeout_s, f"another: {self._logs()}")
        return await self.led()

    async def restart(self, dispatcher: DispatcherProcess) -> None:
        """SIGTERM, and again; returns when it leads or stands by."""
        code, _ = await asyncio.to_thread(dispatcher.terminate, 30)
        assert code == 0, dispatcher.log()[-2000:]
        dispatcher.start()
        await asyncio.to_thread(dispatcher.ready)

    async def name_nodes(self, urls: tuple[str, ...]) -> None:
        """Other nodes in every configuration, and one dispatcher after the other started again."""
        self.urls = urls
        for dispatcher in self.dispatchers:
            settings = yaml.safe_load(dispatcher.config.read_text())
            settings["rabbitmq"]["urls"] = list(urls)
            dispatcher.config.write_text(yaml.safe_dump(settings))
            await self.restart(dispatcher)

    async def assign(self, groups: list[str]) -> None:
        """One message of each group, after which nothing more comes: under `exclusive` it keeps its owner."""
        numbers = [MessageKey(QUEUES[0], group, 0, 1, "once") for group in groups]
        async with Client.opened(self.rabbitmq) as client:
            for number in numbers:
                client.send(number.queue, number.body(), number.group)
            await client.confirmed()
        self.producer.confirmed.update(numbers)

        async def owned() -> bool:
            return set(groups) <= set(await self.owners())

        await eventually(owned, what="owners of all groups")

    async def owners(self) -> dict[str, str]:
        """Who owns which group, by the leader's own word."""
        rows: list[dict[str, Any]] = []
        page = {"sort": "group", "limit": GROUPS_PER_PAGE_MAX}
        while more := (await asyncio.to_thread(self._ask, "groups.list", **page))["groups"]:
            rows += more
            page["after"] = more[-1]["group"]
        return {row["group"]: row["owner"] for row in rows if row["owner"] is not None}

    def _ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        with connected(self.rabbitmq, "test") as connection:
            names = LaneNames(LANE, self.vhost.redis_prefix)
            return ask(connection, names, command, arguments, timeout_ms=ASK_TIMEOUT_MS)

    def led_at(self) -> list[float]:
        """When each leadership began, in seconds since 1970."""
        whole = "\n".join(d.whole_log() for d in self.dispatchers)
        led = [record["timestamp"] for record in log_records(whole) if record.get("event") == "lane_led"]
        return sorted(datetime.fromisoformat(timestamp).timestamp() for timestamp in led)

    def fail_over_s(self) -> list[float]:
        """From each kill of a leader to the next leadership."""
        led_at = self.led_at()
        return [
            min(at for at in led_at if at > killed) - killed
            for killed in self.dispatcher_killed_at
            if any(at > killed for at in led_at)
        ]

    def _logs(self) -> str:
        return "\n".join(d.log()[-1500:] for d in self.dispatchers)

    # -- consumers --

    def start_consumer(self, consumer_id: str, kind: str = "async") -> Life:
        number = self._lives_of[consumer_id] = self._lives_of.get(consumer_id, 0) + 1
        name = f"{consumer_id}-{number}"
        arguments = [
            kind, ",".join(self.urls) or self.vhost.amqp_url, self.vhost.redis_prefix, LANE, consumer_id,
            str(PREFETCH), str(self.folder / f"{name}.record"), str(self.work_ms),
        ]  # fmt: skip
        with (self.folder / f"{name}.log").open("wb") as log:
            process = forking.start("tests.recovery.worker", arguments, log)
        life = Life(name, consumer_id, process)
        self.lives.append(life)
        return life

    def start_consumers(self) -> None:
        for number, kind in enumerate(self.kinds):
            self.start_consumer(f"c{number}", kind)

    async def has_consumers(self, count: int) -> None:
        """Wait until that many consumers have joined, by the leader's metrics."""
        wanted = f'dispatcher_consumers{{lane="{LANE}"}} {count}.0'

        async def joined() -> bool:
            leader = await self.led()
            return wanted in (await asyncio.to_thread(leader.get, "/metrics"))[1]

        await eventually(joined, START_S, f"{count} consumers")

    async def all_live(self) -> None:
        """Wait until every consumer may be given something, by the leader's own word."""

        async def live() -> bool:
            rows = (await asyncio.to_thread(self._ask, "consumers.list"))["consumers"]
            return [row["state"] for row in rows] == ["live"] * len(self.living())

        await eventually(live, START_S, "all consumers to be live")

    def living(self) -> list[Life]:
        return [life for life in self.lives if life.process.poll() is None]

    def kill_consumer(self, life: Life) -> None:
        self.killed_at[life.name] = time.monotonic()
        life.process.kill()
        life.process.wait()

    async def stop_consumers(self) -> None:
        """In order: each leaves, finishes and settles."""
        await asyncio.gather(*(self.stop_consumer(life) for life in self.living()))

    async def stop_consumer(self, life: Life) -> None:
        """It leaves, finishes what it has in hand, settles; its groups may go from now on."""
        self.left_at[life.name] = time.monotonic()
        life.process.send_signal(signal.SIGTERM)
        await eventually(lambda: life.process.poll() is not None, what=f"{life.name} to stop")
        started_to_work = (self.folder / f"{life.name}.record").exists()
        if life.process.returncode != -signal.SIGTERM or started_to_work:
            assert life.process.returncode == 0, (self.folder / f"{life.name}.log").read_text()[-3000:]

    # -- the verdict --

    async def verify(self) -> None:
        """Let everything be handled, stop everything in order, and fail with what was violated."""
        found = await self.finish()
        assert not found, f"{len(found)} violations:\n" + "\n".join(sorted(found)[:12])

    def record(self) -> list[HandlingRecord]:
        return read_record(self.folder)

    async def handled(self, count: int, timeout_s: float = START_S) -> None:
        """Wait until that many handlings have begun."""
        await eventually(lambda: self.started() >= count, timeout_s, f"{count} handlings")

    def started(self) -> int:
        """How many handlings have begun. Reads what was written since the last call: it is asked often."""
        for path in self.folder.glob("*.record"):
            offset, count = self._counted.get(path, (0, 0))
            with path.open("rb") as file:
                file.seek(offset)
                whole = file.read().rpartition(b"\n")[0]
            self._counted[path] = (offset + len(whole), count + whole.count(f"{STARTED} ".encode()))
        return sum(count for _, count in self._counted.values())

    async def goes_on(self, count: int = MORE, timeout_s: float = START_S) -> None:
        """Wait until that many more handlings have begun."""
        await self.handled(self.started() + count, timeout_s)

    async def not_ready(self, reason: str) -> None:
        """Wait until the leader's /readyz says why it does not dispatch: it may be another one by then."""

        async def refuses() -> bool:
            leader = await self.led()
            status, text = await asyncio.to_thread(leader.get, "/readyz")
            return status == 503 and reason in text

        await eventually(refuses, what=f"/readyz to say {reason}")

    async def finish(self) -> list[str]:
        """Stop the load, let everything be handled, stop everything; returns what was violated."""
        await self.producer.stop()
        published = frozenset(self.producer.confirmed)
        await self._all_handled(published)
        await self.stop_consumers()
        await self._settles_read()
        for dispatcher in self.dispatchers:
            if dispatcher.is_alive():
                assert dispatcher.terminate(30)[0] == 0, dispatcher.log()[-3000:]
        keeps_owner, forgotten = self.policy == "exclusive", tuple(self.forgotten)
        story = Story(
            published, self.killed_at, self.left_at, keeps_owner, forgotten, closes=is_closing,
            steal_after_s=steal_after_s(),
        )  # fmt: skip
        found = [str(violation) for violation in violations(self.record(), story)]
        found += [f"a bug: {d.log()[-3000:]}" for d in self.dispatchers if '"lane_failed"' in d.whole_log()]
        return found + await self._left_over()

    async def _all_handled(self, published: frozenset[MessageKey]) -> None:
        """Wait as long as handlings begin: a busy machine takes its time. The checker says what is lost."""
        begun, since = -1, time.monotonic()
        while True:
            ended = {h.message for h in self.record() if h.end is not None}
            if published <= ended:
                return
            if begun != self.started():
                begun, since = self.started(), time.monotonic()
            elif time.monotonic() - since > PATIENCE_S:
                return
            await asyncio.sleep(LOOK_S)  # sleeps: between two looks

    async def _settles_read(self) -> None:
        """Consumers have left when RabbitMQ has their settles; a leader that stops before it has read them
        leaves their messages to the next one."""
        control = LaneNames(LANE, self.vhost.redis_prefix).control
        async with Client.opened(self.rabbitmq) as client:

            async def are_read() -> bool:
                return await client.ready(control) == 0

            await eventually(are_read, START_S, "settles to be read")

    async def _left_over(self) -> list[str]:
        names = f"{self.vhost.redis_prefix}.{LANE}"
        async with Client.opened(self.rabbitmq) as client:
            left = {queue: await client.ready(queue) for queue in QUEUES}
            dead = await client.take(f"{names}.dead")
        found = [f"left in {queue}: {count} messages" for queue, count in left.items() if count]
        record = self.record()
        return found + wrongly_dead(
            [(m.body, m.properties) for m in dead], record, once=True, repeated=self._given_up_twice(record)
        )

    def _given_up_twice(self, record: list[HandlingRecord]) -> frozenset[MessageKey]:
        """What failed shortly before it was forgotten may be handed over, and given up, again."""
        return frozenset(
            handling.message
            for handling in record
            if handling.failed
            and handling.end is not None
            and any(gap.since <= handling.end <= gap.until for gap in self.forgotten)
        )

    async def close(self) -> None:
        for life in self.living():
            life.process.kill()
            life.process.wait()
        for dispatcher in self.dispatchers:
            dispatcher.close()
        await self.producer.close()


@contextlib.asynccontextmanager
async def scene_of(
    vhost: Vhost, folder: Path, policy: str, seed: int, rate: float = RATE, urls: tuple[str, ...] = ()
) -> AsyncIterator[Scene]:
    """A scene that leaves no process and no socket behind, however the test ends."""
    print(f"seed: {seed}")
    scene = Scene(vhost, folder, policy, seed, rate, urls)
    try:
        yield scene
    finally:
        await scene.close()


def wrongly_dead(
    dead: list[tuple[bytes, bytes]],
    record: list[HandlingRecord],
    *,
    once: bool,
    repeated: frozenset[MessageKey] = frozenset(),
    gone: frozenset[MessageKey] = frozenset(),
) -> list[str]:
    """The dead queue must hold what was given up, once by origin: a crash may store a copy twice. What is
    `gone` an operator took out."""
    failed = {handling.message for handling in record if handling.failed}
    last = {handling.message: handling for handling in record}
    given_up = {message for message, handling in last.items() if handling.failed} - gone
    origins: dict[MessageKey, set[str]] = {}
    found = []
    for body, raw in dead:
        headers = read_properties(raw).headers or {}
        if not headers["x-dispatch-reason"].endswith(FAILED):
            found.append(f"wrongly dead: {body!r}: {headers['x-dispatch-reason']}")
            continue
        origins.setdefault(MessageKey.of(body), set()).add(headers["x-dispatch-origin"])
    found += [f"wrongly dead: {say_number(n)} was not given up" for n in origins.keys() - failed]
    found += [f"lost: {say_number(n)} was given up and is not dead" for n in given_up - origins.keys()]
    twice = [number for number, of in origins.items() if len(of) > 1] if once else []
    return found + [
        f"doubled: {say_number(number)} is dead with origins {origins[number]}"
        for number in twice
        if number not in repeated
    ]
