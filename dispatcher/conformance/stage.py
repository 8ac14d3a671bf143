"""Everything that a scene plays with: dispatchers, programs under test, messages, and what was recorded."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aio_pika
import redis

from dispatcher.client import GroupProducer
from dispatcher.conformance.control_tap import ControlTap
from dispatcher.conformance.program import Call, Program, ProgramOptions
from dispatcher.conformance.proxy import CuttableWay
from dispatcher.demo import queues
from dispatcher.demo.dispatcher_process import DispatcherProcess
from dispatcher.errors import DispatcherError
from dispatcher.judge.record import UNGROUPED, MessageKey
from dispatcher.nodes import Servers
from dispatcher.wire import protocol
from dispatcher.wire.protocol import LaneNames

LANE: Final = "orders"
CONSUMERS: Final = ("c1", "c2", "c3")
PREFETCH: Final = 20
CONCURRENCY: Final = 4
HEARTBEAT_S: Final = 0.5
#: A consumer whose connection is cut for less than this keeps its messages.
RECONNECT_GRACE_S: Final = 2.0
STEAL_AFTER_S: Final = 1.0
ATTEMPTS: Final = 3
BACKOFF_S: Final = 0.2
#: For anything that has to come: a program may take seconds to start on a busy machine.
PATIENCE_S: Final = 30.0
POLL_S: Final = 0.02

#: How the calls for a message end, one after the other; later ones with `ack`.
Outcomes = Iterable[str]


class SceneFailed(DispatcherError):
    """What must have come did not come."""


class Stage:
    """`async with Stage(command, servers, folder) as stage`: the lane is led and nobody has joined."""

    def __init__(self, command: Sequence[str], servers: Servers, folder: Path) -> None:
        self.command = command
        self.programs: dict[str, Program] = {}  # the living, by consumer
        self.all_programs: list[Program] = []
        self.published: set[MessageKey] = set()
        self.killed_at: dict[str, float] = {}  # by life
        self.left_at: dict[str, float] = {}
        self.poison: set[MessageKey] = set()
        self.problems: list[str] = []
        #: Calls that this holds for are not answered, until `release`.
        self.holds: Callable[[Program, Call], bool] = lambda *_: False
        #: Is told of each call first; True: there is nothing left to answer.
        self.on_call: Callable[[Program, Call], bool] = lambda *_: False
        self._servers = servers
        self._folder = folder
        run = uuid.uuid4().hex[:8]
        self.names = LaneNames(LANE, f"conformance-{run}")
        self.inbound = [f"conformed-{run}.high", f"conformed-{run}.low"]
        self._outcomes: dict[MessageKey, deque[str]] = {}
        self._numbers: dict[tuple[str, str], int] = defaultdict(int)
        self._lives: dict[str, int] = defaultdict(int)
        self._groups = 0
        self.ways: dict[str, CuttableWay] = {}
        self._open = AsyncExitStack()

    # --- before and after -----------------------------------------------------------------------------

    async def __aenter__(self) -> Stage:
        try:
            await self._set_up()
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def _set_up(self) -> None:
        self._open.push_async_callback(self._remove)
        self.dispatchers = [self._open.enter_context(DispatcherProcess(self._configuration())) for _ in "ab"]
        await asyncio.to_thread(self.dispatchers[0].start)
        await asyncio.to_thread(self.dispatchers[1].launch)
        for consumer in CONSUMERS:
            way = CuttableWay(self._servers.amqp_url)
            self.ways[consumer] = await self._open.enter_async_context(way)
        self.tap = await self._open.enter_async_context(ControlTap(self._servers.amqp_url, self.names))
        self._producers = {
            queue: await self._open.enter_async_context(
                GroupProducer(self._servers.amqp_url, queue, give_up_after_s=PATIENCE_S)
            )
            for queue in self.inbound
        }
        self._open.push_async_callback(self._kill_programs)

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def _kill_programs(self) -> None:
        for program in self.all_programs:
            await program.kill()

    def _configuration(self) -> dict[str, Any]:
        lane = {
            "inbound": [
                {"queue": queue, "weight": weight, "declare": True}
                for queue, weight in zip(self.inbound, (3, 1), strict=True)
            ],
            "retry": {"attempts": ATTEMPTS, "backoff": f"{BACKOFF_S * 1000:.0f}ms"},
            "reconnect_grace": f"{RECONNECT_GRACE_S:.0f}s",
            "steal_after": f"{STEAL_AFTER_S:.0f}s",
            "heartbeat": f"{HEARTBEAT_S * 1000:.0f}ms",
            "liveness_interval": "200ms",
        }
        return {
            "rabbitmq": {"url": self._servers.amqp_url},
            "redis": {"url": self._servers.redis_url},
            "prefix": self.names.prefix,
            "lanes": {LANE: lane},
        }

    async def _remove(self) -> None:
        """Nothing of the run stays on the servers."""
        await asyncio.to_thread(queues.remove, self._servers.amqp_url, self.names, self.inbound)
        await asyncio.to_thread(self._delete_keys)

    def _delete_keys(self) -> None:
        with redis.Redis.from_url(self._servers.redis_url) as client:
            for key in client.scan_iter(match=f"*{self.names.prefix}*", count=1_000):
                client.delete(key)

    # --- programs -------------------------------------------------------------------------------------

    async def start(self, consumer: str) -> Program:
        """Start a program as this consumer; it joins when it is ready."""
        self._lives[consumer] += 1
        life = f"{consumer}/{self._lives[consumer]}"
        options = ProgramOptions(self.names.prefix, LANE, consumer, PREFETCH, CONCURRENCY)
        program = Program(
            self.command,
            options,
            self.ways[consumer].url,
            life,
            self._folder / f"{consumer}.log",
            self._called,
        )
        await program.start()
        self.programs[consumer] = program
        self.all_programs.append(program)
        return program

    async def joined(self, consumer: str) -> None:
        """Wait until the dispatcher has heard a heartbeat of the program that runs now: it was welcomed."""
        joins = self.tap.joins[consumer]
        before = len(self.tap.heartbeats[consumer])

        def heard() -> bool:
            later = self.tap.heartbeats[consumer][before:]
            return any(joins and beat.incarnation == joins[-1].incarnation for _, beat in later)

        await self.until(heard, f"{consumer} to join and to send a heartbeat")

    async def kill(self, program: Program) -> None:
        self.killed_at[program.life] = time.monotonic()
        await program.kill()
        program.open.clear()

    def new_life(self, program: Program) -> None:
        """Its incarnation was taken back: what it begins from now on belongs to the next one."""
        self._lives[program.consumer] += 1
        program.life = f"{program.consumer}/{self._lives[program.consumer]}"

    def _called(self, program: Program, call: Call) -> None:
        if not self.on_call(program, call) and not self.holds(program, call):
            self.answer(program, call)

    def answer(self, program: Program, call: Call) -> None:
        """End a call as planned."""
        outcomes = self._outcomes.get(call.message)
        program.end(call, outcomes.popleft() if outcomes else "ack", f"as planned, call {call.number}")

    def release(self) -> None:
        """Answer everything that was held, and hold nothing any more."""
        self.holds = lambda *_: False
        for program in self.programs.values():
            for call in list(program.open.values()):
                self.answer(program, call)

    # --- messages -------------------------------------------------------------------------------------

    def new_groups(self, count: int) -> list[str]:
        """Groups that no consumer has."""
        self._groups += count
        return [f"n{number}" for number in range(self._groups - count, self._groups)]

    async def publish(self, groups: Iterable[str], each: int, outcomes: Outcomes = ()) -> list[MessageKey]:
        """Publish this many messages of each group, round after round; returns when RabbitMQ has confirmed
        all."""
        sent = []
        for group in [group for _ in range(each) for group in groups]:
            queue = self.inbound[sum(group.encode()) % 2]
            self._numbers[queue, group] += 1
            key = MessageKey(queue, group, 0, self._numbers[queue, group])
            self._outcomes[key] = deque(outcomes)
            self._producers[queue].submit(key.body(), None if group == UNGROUPED else group)
            sent.append(key)
        for producer in self._producers.values():
            await producer.flush()
        self.published.update(sent)
        return sent

    def ended(self) -> set[MessageKey]:
        """Messages whose last call has ended, and will not be called again."""
        return {
            h.message
            for program in self.all_programs
            for h in program.handlings
            if h.end is not None and not self._outcomes.get(h.message)
        }

    async def all_ended(self, keys: Iterable[MessageKey] | None = None) -> None:
        wanted = (self.published if keys is None else set(keys)) - self.poison
        await self.until(lambda: wanted <= self.ended(), lambda: f"{len(wanted - self.ended())} messages")

    async def dead(self) -> list[tuple[MessageKey, dict[str, Any]]]:
        """What is in the dead queue, with its headers; it stays there."""
        connection = await aio_pika.connect(self._servers.amqp_url)
        async with connection:
            channel = await connection.channel()
            queue = await channel.get_queue(self.names.dead)
            found = []
            while (message := await queue.get(no_ack=False, fail=False)) is not None:
                found.append((MessageKey.of(message.body), dict(message.headers)))
            return found  # with the connection they go back

    async def left_in_inbound_queues(self) -> int:
        counts = await asyncio.to_thread(queues.counts, self._servers.amqp_url, self.inbound)
        return sum(counts.values())

    # --- waiting --------------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], bool], what: str | Callable[[], str]) -> None:
        """Raises SceneFailed when it does not hold in time, or a program ended by itself."""

        async def asked() -> bool:
            return holds()

        await self.until_async(asked, what)

    async def until_async(self, holds: Callable[[], Awaitable[bool]], what: str | Callable[[], str]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while not await holds():
            self._look_for_trouble()
            if loop.time() > deadline:
                said = what if isinstance(what, str) else what()
                raise SceneFailed(f"waited {PATIENCE_S:.0f} s in vain for {said}")
            await asyncio.sleep(POLL_S)

    def _look_for_trouble(self) -> None:
        for program in self.programs.values():
            if program.problems:
                raise SceneFailed("the scene was broken off for what follows")
            if not program.is_alive:
                raise SceneFailed(f"{program.consumer} has ended by itself")


def reason_of(headers: dict[str, Any]) -> str:
    return str(headers.get(protocol.HEADER_REASON, ""))
