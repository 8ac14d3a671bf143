"""Carries a plan's faults out, as many at a time as the plan says, and logs each with its times."""

from __future__ import annotations

import asyncio
import contextlib
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dispatcher.nodes.local import LocalNode
from tests.chaos.commands import Commands, Happened, picked
from tests.chaos.deciding import Decider
from tests.chaos.operator import Operator
from tests.chaos.parts import Outage, Process, Replica
from tests.chaos.plan import Fault
from tests.chaos.redis_faults import RedisFaults
from tests.chaos.stage import Stage
from tests.chaos.upkeep import Upkeep
from tests.waiting import eventually

SDK_KINDS = ("async", "blocking", "iterating")
EXTRA_KINDS = (*SDK_KINDS, "bare")


class Faults(Commands, Upkeep, RedisFaults):
    """Every kind of fault is a method of its name."""

    def __init__(self, stage: Stage, say: Callable[[str], None]) -> None:
        self.happened: list[Happened] = []
        self._stage = stage
        self._operator = Operator(stage)
        self._decider = Decider(stage)
        self._deciding = asyncio.Lock()
        self._say = say
        self._begun = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rabbitmq_busy = asyncio.Lock()
        self._redis_busy = asyncio.Lock()
        self._extras = 0

    async def carry_out(self, faults: list[Fault], seconds: float) -> None:
        """Returns after `seconds`, when the last fault is over too. Raises what a fault of ours raised."""
        self._begun = time.monotonic()
        for fault in faults:
            # sleeps: the plan says when
            await asyncio.sleep(max(0.0, self._begun + fault.at_s - time.monotonic()))  # sleeps: see above
            self._raise_errors()
            self._tasks.add(asyncio.create_task(self._carry_out(fault)))
        await asyncio.sleep(max(0.0, self._begun + seconds - time.monotonic()))  # sleeps: until the end
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._raise_errors()

    async def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _raise_errors(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()

    async def _carry_out(self, fault: Fault) -> None:
        happened = Happened(fault.name, "", self._now_s())
        self.happened.append(happened)
        await getattr(self, fault.name)(fault, happened)
        happened.until_s = self._now_s()
        times = f"{happened.since_s:8.3f}–{happened.until_s:.3f}"
        self._say(f"{times} {fault.name} {happened.target} {happened.note}".rstrip())

    def _now_s(self) -> float:
        return time.monotonic() - self._begun

    async def _last(self, fault: Fault) -> None:
        await asyncio.sleep(fault.length_s)  # sleeps: that long it lasts

    # -- targets --

    def _leader(self, fault: Fault, happened: Happened) -> Replica | None:
        leader = self._stage.leader(self._lane(fault))
        happened.target = leader.name if leader is not None else "nobody"
        return leader

    def _replica(self, fault: Fault, happened: Happened) -> Replica:
        replica = picked(self._stage.replicas, fault)
        happened.target = replica.name
        return replica

    def _consumer(self, fault: Fault, happened: Happened) -> Process | None:
        return self._one_of(self._stage.living(self._stage.consumers), fault, happened)

    def _producer(self, fault: Fault, happened: Happened) -> Process | None:
        return self._one_of(self._stage.living(self._stage.producers), fault, happened)

    def _one_of(self, processes: list[Process], fault: Fault, happened: Happened) -> Process | None:
        processes = [process for process in processes if process.left_at is None]
        happened.target = "nobody"
        if not processes:
            return None
        process = picked(processes, fault)
        happened.target = f"{process.name} ({process.kind}, {process.lane.name})"
        return process

    # -- dispatchers --

    async def kill_leader(self, fault: Fault, happened: Happened) -> None:
        if leader := self._leader(fault, happened):
            await self._kill_replicas([leader], fault)

    async def kill_other(self, fault: Fault, happened: Happened) -> None:
        others = [r for r in self._stage.replicas if r is not self._leader(fault, happened)]
        happened.target = others[0].name
        await self._kill_replicas(others[:1], fault)

    async def kill_dispatchers(self, fault: Fault, happened: Happened) -> None:
        happened.target = "both"
        await self._kill_replicas(self._stage.replicas, fault)

    async def _kill_replicas(self, replicas: list[Replica], fault: Fault) -> None:
        killed = [replica for replica in replicas if replica.process.is_alive()]
        for replica in killed:
            replica.kill()
        await self._last(fault)
        for replica in killed:
            if not replica.process.is_alive():
                self._stage.start(replica)

    async def stop_leader(self, fault: Fault, happened: Happened) -> None:
        leader = self._leader(fault, happened)
        if leader is None:
            return
        pid = leader.process.pid
        leader.ended_at.append(time.monotonic())
        leader.signal(signal.SIGTERM)
        await self._last(fault)
        try:
            # Another fault may have started it again meanwhile.
            await eventually(lambda: not leader.process.is_alive() or leader.process.pid != pid)
        except AssertionError:  # it is frozen, or cut off
            happened.note = "did not end in time"
            leader.kill()
        if not leader.process.is_alive():
            self._stage.start(leader)

    async def freeze_leader(self, fault: Fault, happened: Happened) -> None:
        if leader := self._leader(fault, happened):
            since = time.monotonic()
            leader.signal(signal.SIGSTOP)
            await self._last(fault)
            leader.signal(signal.SIGCONT)
            leader.slow.append((since, time.monotonic()))

    async def cut_dispatcher(self, fault: Fault, happened: Happened) -> None:
        self._replica(fault, happened).rabbitmq.cut()

    async def stall_dispatcher(self, fault: Fault, happened: Happened) -> None:
        replica, since = self._replica(fault, happened), time.monotonic()
        await self._stall(replica.rabbitmq, fault)
        replica.slow.append((since, time.monotonic()))

    async def half_stall_dispatcher(self, fault: Fault, happened: Happened) -> None:
        replica, since = self._replica(fault, happened), time.monotonic()
        await self._half_stall(replica.rabbitmq, fault, happened)
        replica.slow.append((since, time.monotonic()))

    async def cut_redis(self, fault: Fault, happened: Happened) -> None:
        self._replica(fault, happened).redis.cut()

    async def stall_redis(self, fault: Fault, happened: Happened) -> None:
        replica, since = self._replica(fault, happened), time.monotonic()
        await self._stall(replica.redis, fault)
        replica.redis_slow.append((since, time.monotonic()))

    async def lose_redis_replies(self, fault: Fault, happened: Happened) -> None:
        """What is sent arrives, what is answered does not."""
        replica, since = self._replica(fault, happened), time.monotonic()
        replica.redis.stall(to_server=False)
        await self._last(fault)
        replica.redis.cut()
        replica.redis.resume()
        replica.redis_slow.append((since, time.monotonic()))

    async def _stall(self, proxy: Any, fault: Fault) -> None:
        proxy.stall()
        await self._last(fault)
        proxy.resume()

    async def _half_stall(self, proxy: Any, fault: Fault, happened: Happened) -> None:
        to_server = fault.pick * 1000 % 2 < 1
        happened.note = "towards the server" if to_server else "from the server"
        proxy.stall(to_server=to_server, to_client=not to_server)
        await self._last(fault)
        proxy.resume()

    # -- consumers --

    async def kill_consumer(self, fault: Fault, happened: Happened) -> None:
        if process := self._consumer(fault, happened):
            process.kill()
            await self._last(fault)
            await self._stage.start_consumer(process.lane, process.who, process.kind)

    async def leave_consumer(self, fault: Fault, happened: Happened) -> None:
        if process := self._consumer(fault, happened):
            await self._leave(process, happened)
            await self._last(fault)
            await self._stage.start_consumer(process.lane, process.who, process.kind)

    async def _leave(self, process: Process, happened: Happened) -> None:
        if wrong := await self._stage.stop([process]):
            happened.note += f" {wrong} did not end in order"

    async def join_consumer(self, fault: Fault, happened: Happened) -> None:
        """One more for a while, where one can join."""
        lanes = [lane for lane in self._stage.lanes if not lane.hands_over]
        if not lanes:
            happened.note = "skipped: nobody can join"
            return
        self._extras += 1
        kind = EXTRA_KINDS[self._extras % len(EXTRA_KINDS)]
        process = await self._stage.start_consumer(picked(lanes, fault), f"x{self._extras}", kind)
        happened.target = f"{process.name} ({process.kind}, {process.lane.name})"
        await self._last(fault)
        if process.alive and process.left_at is None:
            await self._leave(process, happened)

    async def freeze_consumer(self, fault: Fault, happened: Happened) -> None:
        await self._freeze(self._consumer(fault, happened), fault)

    async def stick_consumer(self, fault: Fault, happened: Happened) -> None:
        """It takes, answers, and ends nothing for a while: one that knows how, of a lane that evicts such."""
        process = self._one_of(self._who_may_get_stuck(), fault, happened)
        if process is None:
            happened.note = "skipped: no lane evicts"
            return
        process.get_stuck()
        await self._last(fault)
        process.go_on()

    def _who_may_get_stuck(self) -> list[Process]:
        """Those that have written something down have begun to listen to signals."""
        return [
            process for process in self._stage.living(self._stage.consumers)
            if self._stage.evicts_after_s(process.lane) is not None
            and process.kind in SDK_KINDS and not process.stuck
            and (self._stage.folder / f"{process.name}.record").exists()
        ]  # fmt: skip

    async def cut_consumer(self, fault: Fault, happened: Happened) -> None:
        if process := self._consumer(fault, happened):
            process.proxy.cut()

    async def stall_consumer(self, fault: Fault, happened: Happened) -> None:
        if process := self._consumer(fault, happened):
            with _silent(process):
                await self._stall(process.proxy, fault)

    async def half_stall_consumer(self, fault: Fault, happened: Happened) -> None:
        if process := self._consumer(fault, happened):
            with _silent(process):
                await self._half_stall(process.proxy, fault, happened)

    async def _freeze(self, process: Process | None, fault: Fault) -> None:
        if process is None:
            return
        with _silent(process):
            process.signal(signal.SIGSTOP)
            await self._last(fault)
            process.signal(signal.SIGCONT)

    # -- producers --

    async def kill_producer(self, fault: Fault, happened: Happened) -> None:
        if process := self._producer(fault, happened):
            process.kill()
            await self._last(fault)
            await self._stage.start_producer(process.lane, process.who, process.kind)

    async def freeze_producer(self, fault: Fault, happened: Happened) -> None:
        await self._freeze(self._producer(fault, happened), fault)

    async def cut_producer(self, fault: Fault, happened: Happened) -> None:
        if process := self._producer(fault, happened):
            process.proxy.cut()

    async def stall_producer(self, fault: Fault, happened: Happened) -> None:
        if process := self._producer(fault, happened):
            await self._stall(process.proxy, fault)

    # -- servers --

    async def kill_redis(self, fault: Fault, happened: Happened) -> None:
        await self._without_redis(fault, happened, kill=True)

    async def stop_redis(self, fault: Fault, happened: Happened) -> None:
        await self._without_redis(fault, happened, kill=False)

    async def empty_redis(self, fault: Fault, happened: Happened) -> None:
        await self._without_redis(fault, happened, kill=True, empty=True)

    async def set_redis_back(self, fault: Fault, happened: Happened) -> None:
        """It comes back with the data of a while ago."""
        folder = self._stage.folder / "redis-before"
        back_to = time.monotonic()
        await asyncio.to_thread(_copied, self._stage.servers.redis.data, folder)
        await self._last(fault)
        await self._without_redis(fault, happened, kill=True, older=folder, back_to=back_to)

    async def _without_redis(
        self, fault: Fault, happened: Happened, *, kill: bool, empty: bool = False,
        older: Path | None = None, back_to: float | None = None,
    ) -> None:  # fmt: skip
        if self._redis_busy.locked():
            happened.note = "skipped: it is down already"
            return
        async with self._redis_busy:
            if (empty or older) and not await self._led():
                happened.note = "skipped: nobody leads"
                return
            redis = self._stage.servers.redis
            outage = Outage(time.monotonic(), 0.0, kill, back_to)
            await asyncio.to_thread(redis.kill9 if kill else redis.stop)
            if empty:
                outage.back_to = outage.since
                redis.wipe()
            elif older is not None:
                redis.wipe()
                await asyncio.to_thread(_copied, older, redis.data)
            else:
                await self._last(fault)
            await self._start_again(redis, outage, happened)
            self._stage.redis_outages.append(outage)

    async def _led(self) -> bool:
        """Wait for a leader of every lane: a Redis that forgets while nobody leads is two failures, about
        which little is promised. What hits that leader just then is chance."""
        try:
            await eventually(self._stage.is_led)
        except AssertionError:
            return False
        return True

    async def kill_rabbitmq(self, fault: Fault, happened: Happened) -> None:
        await self._without_rabbitmq(fault, happened, kill=True)

    async def stop_rabbitmq(self, fault: Fault, happened: Happened) -> None:
        await self._without_rabbitmq(fault, happened, kill=False)

    async def _without_rabbitmq(self, fault: Fault, happened: Happened, *, kill: bool) -> None:
        if self._rabbitmq_busy.locked():
            happened.note = "skipped: it is down already"
            return
        async with self._rabbitmq_busy:
            rabbitmq = self._stage.servers.rabbitmq
            outage = Outage(time.monotonic(), 0.0, kill)
            await asyncio.to_thread(rabbitmq.kill9 if kill else rabbitmq.stop)
            await self._last(fault)
            await self._start_again(rabbitmq, outage, happened)
            self._stage.rabbitmq_outages.append(outage)

    async def _start_again(self, server: LocalNode, outage: Outage, happened: Happened) -> None:
        if not await self._stage.start_again(server):
            outage.killed = True
            happened.note = "came up at the second attempt"
        outage.until = time.monotonic()


@contextlib.contextmanager
def _silent(process: Process) -> Iterator[None]:
    """It can't answer meanwhile."""
    begun = (time.monotonic(), math.inf)
    process.silent.append(begun)
    try:
        yield
    finally:
        process.silent.remove(begun)
        process.silent.append((begun[0], time.monotonic()))


def _copied(source: Path, target: Path) -> None:
    """A copy of a folder in which somebody may be writing."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
