"""Runs dispatchers for tests: inside the test's own event loop, or as processes that may be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from dispatcher.cli.command_client import ask
from dispatcher.cli.rabbitmq import connected
from dispatcher.errors import BrokerUnavailable
from dispatcher.ledger.recorder import NO_LEDGER, OpensRecorders
from dispatcher.nodes.management import Management, with_vhost
from dispatcher.nodes.servers import PrivateServers
from dispatcher.service.lane_runner import LaneRunner, RunnerState
from dispatcher.settings import RabbitSettings, Settings
from dispatcher.settings import file as config
from dispatcher.wire.protocol import LaneNames
from tests import forking
from tests.conftest import Vhost
from tests.service.clients import Client
from tests.service.protocol_consumer import ProtocolConsumer
from tests.waiting import TIMEOUT_S, eventually, wait_until

ROOT = Path(__file__).parents[2]
LANE = "orders"
ASK_TIMEOUT_MS = 10_000
#: For a process to begin and to get through to its servers, on a machine that has much else to do.
START_S = 60.0
#: A process that is told to stop gives its lanes 4 s at most. The rest is for a busy machine, and all of it
#: still less than the 10 s after which a silent server is given up.
STOP_S_MAX = 8.0


def document(amqp_url: str, redis_url: str, prefix: str, lanes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A configuration whose lanes probe their consumers often, so that tests are short."""
    quick = {"liveness_interval": "200ms"}
    heard = {"heartbeat": "1s"}  # of consumers that send any
    return {
        "rabbitmq": {"url": amqp_url},
        "redis": {"url": redis_url},
        "http": {"listen": "127.0.0.1:0"},
        "prefix": prefix,
        "lanes": {
            name: {**quick, **({} if lane.get("handover") else heard), **lane} for name, lane in lanes.items()
        },
    }


def lane(*queues: str, **keys: Any) -> dict[str, Any]:
    """A lane over these inbound queues, declared when missing. Of a group as much is out as its consumer's
    prefetch lets out, unless the keys say otherwise: most tests keep messages of one group unsettled."""
    keyed = {"inbound": [{"queue": queue, "declare": True} for queue in queues or ("in",)], **keys}
    has_windows = keys.get("policy") != "concurrent" and keys.get("group_map") != "none"
    is_other = (
        keys.get("handover")
        or keys.get("max_in_flight_per_group")
        or "stop" in str(keys.get("retry"))
        or "park" in str(keys.get("retry"))
    )
    if has_windows and not is_other:
        keyed.setdefault("group_window", {"initial": 60_000, "max": 60_000})
    return keyed


class Bench:
    """What a test works with: a vhost, the lanes' dispatcher in this event loop, clients, consumers."""

    def __init__(self, vhost: Vhost) -> None:
        self.vhost = vhost
        self.rabbitmq = RabbitSettings(url=vhost.amqp_url)
        self.ledger: OpensRecorders = NO_LEDGER
        self.runner_type: type[LaneRunner] = LaneRunner
        self.runners: dict[str, LaneRunner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._consumers: list[ProtocolConsumer] = []
        self._clients: list[Client] = []

    # -- the dispatcher --

    async def run(
        self,
        *,
        wait: bool = True,
        redis_url: str | None = None,
        changes: dict[str, Any] | None = None,
        **lanes: dict[str, Any],
    ) -> None:
        """Start these lanes, as `dispatcher run` does; with `wait` until they lead. `changes`: what else the
        configuration says."""
        settings = self.settings(redis_url=redis_url, changes=changes, **lanes)
        for name in settings.lanes:
            runner = self.runner_type(settings, settings.lanes[name], ledger=self.ledger)
            self.runners[name] = runner
            with contextlib.suppress(BrokerUnavailable):  # it is led when RabbitMQ answers
                await runner.prepare()
            self._tasks[name] = asyncio.create_task(runner.run())
        if wait:
            for name in settings.lanes:
                await self.leads(name)

    def settings(
        self, redis_url: str | None = None, changes: dict[str, Any] | None = None, **lanes: dict[str, Any]
    ) -> Settings:
        written = document(
            self.vhost.amqp_url, redis_url or self.vhost.redis_url, self.vhost.redis_prefix, lanes
        )
        return config.parse(yaml.safe_dump(written | (changes or {})), {})

    async def leads(self, name: str = LANE) -> None:
        """Wait until the lane is led, and recovered."""
        runner = self.runners[name]
        await eventually(
            lambda: runner.state is RunnerState.LEADING, what=f"lane {name} led: {runner.problem}"
        )

    async def stop(self, name: str = LANE) -> None:
        """As SIGTERM does."""
        await self.runners[name].stop()
        await self._cancel(name)

    async def crash(self, name: str = LANE) -> None:
        """Lose everything in memory and all connections, at once."""
        runner = self.runners[name]
        if runner._link is not None:
            runner._link.abort()
        await self._cancel(name)

    async def _cancel(self, name: str) -> None:
        task = self._tasks.pop(name)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def status(self, name: str = LANE) -> dict[str, Any]:
        return self.runners[name].overview()

    def counter(self, counter: str, name: str = LANE) -> int:
        return int(self.runners[name].counters().get(counter, 0))

    async def ask(self, command: str, name: str = LANE, **arguments: Any) -> dict[str, Any]:
        """A command through the command queue, as the CLI sends it. Raises CommandRefused, NoAnswer."""

        def blocking() -> dict[str, Any]:
            with connected(self.rabbitmq, "test") as connection:
                names = LaneNames(name, self.vhost.redis_prefix)
                return ask(connection, names, command, arguments, timeout_ms=ASK_TIMEOUT_MS)

        return await asyncio.to_thread(blocking)

    # -- around it --

    def names(self, name: str = LANE) -> LaneNames:
        return LaneNames(name, self.vhost.redis_prefix)

    async def client(self) -> Client:
        client = await Client.open(self.rabbitmq)
        self._clients.append(client)
        return client

    def consumer(self, consumer_id: str, name: str = LANE, **options: Any) -> ProtocolConsumer:
        """A consumer that has not joined yet."""
        consumer = ProtocolConsumer(self.rabbitmq, self.names(name).exchange, consumer_id, **options)
        self._consumers.append(consumer)
        return consumer

    async def joined(self, consumer_id: str, name: str = LANE, **options: Any) -> ProtocolConsumer:
        """A consumer that was welcomed."""
        return await self.consumer(consumer_id, name, **options).join()

    async def acked(self, queue: str = "in", name: str = LANE) -> None:
        """Wait until nothing of this inbound queue is left: neither ready nor unacked."""
        client = await self.client()

        async def empty() -> bool:
            if await client.ready(queue):  # asked first: what is not ready any more must be in the rows
                return False
            rows = self.status(name).get("inbound", [])
            held = [r for r in rows if r["queue"] == queue and (r["held"] or r["in_flight"])]
            return not held

        await eventually(empty, what=f"{queue} to be empty")

    async def close(self) -> None:
        for name in list(self._tasks):
            await self.stop(name)
        for consumer in self._consumers:
            await consumer.drop()
        for client in self._clients:
            await client.close()


@contextlib.asynccontextmanager
async def bench_of(vhost: Vhost) -> AsyncIterator[Bench]:
    bench = Bench(vhost)
    try:
        yield bench
    finally:
        await bench.close()


def log_records(log: str) -> list[dict[str, Any]]:
    """The whole records of a JSON log: a process that is killed, or still writing, leaves the half of one."""
    records = []
    for line in log.splitlines(keepends=True):
        if line.startswith("{") and line.endswith("}\n"):
            with contextlib.suppress(json.JSONDecodeError):
                records.append(json.loads(line))
    return records


def private_vhost(servers: PrivateServers, name: str = "") -> Vhost:
    """A new vhost of a test's own servers, or their default one: "/"."""
    api = Management(servers.management_url)
    if name == "/":
        return Vhost(name, servers.amqp_url, servers.redis_url, "dispatch", api)
    name = name or f"private-{uuid.uuid4().hex[:12]}"
    api.create_vhost(name)
    return Vhost(name, with_vhost(servers.amqp_url, name), servers.redis_url, name, api)


class DispatcherProcess:
    """`dispatcher run -c FILE` as a process of its own, with its log in a file beside the configuration."""

    def __init__(
        self, folder: Path, name: str, settings: dict[str, Any], program: str = "dispatcher"
    ) -> None:
        self._program = program  # a module that does the same
        self.config = folder / f"{name}.yaml"
        self.config.write_text(yaml.safe_dump(settings))
        self._log = folder / f"{name}.log"
        self._process: forking.Forked | None = None
        self._log_start = 0

    def start(self) -> None:
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            log.write(b"\n")  # a killed one may have left half a line
            log.flush()
            self._process = forking.start(self._program, ["run", "-c", str(self.config)], log)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill9(self) -> None:
        """No goodbye. Returns when the process is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self, timeout_s: float = 10.0) -> tuple[int, float]:
        """SIGTERM; the exit code, and how many seconds it took."""
        assert self._process is not None
        begun = time.monotonic()
        self._process.terminate()
        code = self._process.wait(timeout_s)
        return code, time.monotonic() - begun

    def exited(self, timeout_s: float = START_S) -> int:
        """Wait for it to end by itself."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill9()

    def ended_by_itself(self) -> bool:
        """Neither SIGKILL nor an end in order."""
        return self._process is not None and self._process.poll() not in (None, 0, -signal.SIGKILL)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """What this start wrote so far."""
        written = self._log.read_bytes() if self._log.exists() else b""
        return written[self._log_start :].decode(errors="replace")

    def whole_log(self) -> str:
        """What all starts wrote so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log's records of that event. It is asked often, so most lines are not read as JSON."""
        named = "".join(line for line in self.log().splitlines(keepends=True) if f'"{event}"' in line)
        return [record for record in log_records(named) if record.get("event") == event]

    def url(self, path: str) -> str:
        """Waits until it listens."""
        found = wait_until(
            lambda: self.logged("http_listening"), START_S, f"{self.config.name} listens: {self.log()}"
        )
        return str(found[-1]["url"]).rstrip("/") + path

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of an HTTP answer."""
        try:
            with urllib.request.urlopen(self.url(path), timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ready(self, timeout_s: float = START_S) -> str:
        """Wait for /readyz to say yes; its text."""

        def answer() -> str:
            status, text = self.get("/readyz")
            return text if status == 200 else ""

        return wait_until(answer, timeout_s, f"{self.config.name} ready: {self.log()[-2000:]}")
