"""A consumer process of the recovery tests: handles messages with the SDK and writes the total record.

    python -m tests.recovery.worker KIND URL PREFIX LANE CONSUMER PREFETCH RECORD_FILE WORK_MS [FLAG ...]

KIND is `async`, `blocking`, or `iterating`: an asynchronous one that takes messages and acks them itself. URL
is one, or several of one cluster, joined by commas. It ends in order on SIGTERM; a test may also kill it.
With `raising` every second message that fails does so by an exception, until its attempts are used up, and
succeeds when it is handed over again. `alike`: the lane says no group of any message. From SIGUSR1 to SIGUSR2
it is stuck: what it works at does not end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dispatcher.client import (
    BlockingGroupConsumer,
    BlockingMessage,
    GroupConsumer,
    Message,
    RejectMessage,
)
from dispatcher.errors import SettlesInDoubt
from dispatcher.judge.record import UNGROUPED, MessageKey, RecordWriter
from tests.recovery.rules import FAILED, is_failing, is_mending

CONFIRM_INTERVAL_S = 0.02
CONCURRENCY = 8
_PDEATHSIG = 1


class Breakdown(Exception):
    """What a handler did not expect: it is called again."""


@dataclass(frozen=True, slots=True)
class Task:
    """One message at work."""

    incarnation: str
    message: Message | BlockingMessage
    work_s: float

    @property
    def seq(self) -> int:
        return self.message.seq


class Work:
    """What is done with each message, and what of it was said to be done."""

    def __init__(
        self, consumer: GroupConsumer | BlockingGroupConsumer, record: RecordWriter, work_ms: float,
        *, raising: bool = False, alike: bool = False,
    ) -> None:  # fmt: skip
        self.record = record
        self._raising = raising
        self._alike = alike
        self._broken: set[tuple[str, int]] = set()  # (incarnation, seq): its handler has raised
        self._consumer = consumer
        self._work_s = work_ms / 1000
        self._lock = threading.Lock()
        self._done: list[Task] = []
        self._member: Any = None
        self._welcomed = ("", 0)
        self._free, self._free_in_loop = threading.Event(), asyncio.Event()
        self.go_on()
        signal.signal(signal.SIGUSR1, lambda *_: self.get_stuck())
        signal.signal(signal.SIGUSR2, lambda *_: self.go_on())

    def get_stuck(self) -> None:
        self._free.clear()
        self._free_in_loop.clear()

    def go_on(self) -> None:
        self._free.set()
        self._free_in_loop.set()

    # -- incarnations --

    def incarnation(self) -> str:
        """The present one; notes what became of it and of the one before."""
        with self._lock:
            engine: Any = self._consumer._engine
            member = engine._membership.member
            if member is not self._member:
                self._note_end()
                self._member = member
            name, n = str(member.incarnation)[:8], member.n
            if engine.joined and (name, n) != self._welcomed:
                self._welcomed = name, n
                self.record.welcomed(name, n)
            return name

    def _note_end(self) -> None:
        if self._member is not None and self._member.end is not None:
            self.record.over(str(self._member.incarnation)[:8], self._member.end.value)

    def is_over(self) -> None:
        """The consumer has ended."""
        self.incarnation()
        self._note_end()

    # -- messages --

    def begin(self, message: Message | BlockingMessage) -> Task | None:
        """None: the message was lost before its work began."""
        incarnation = self.incarnation()
        if message.lost:
            return None
        number = MessageKey.of(message.body)
        has_none = self._alike or number.group == UNGROUPED
        assert message.group == (None if has_none else number.group.encode())
        if (incarnation, message.seq) in self._broken:
            self.record.retried(incarnation, message.seq)
        else:
            self.record.started(
                incarnation, number, message.seq, message.group_seq, message.epoch, message.attempt
            )
        work_s = random.expovariate(1 / self._work_s) if self._work_s else 0.0
        return Task(incarnation, message, work_s)

    async def done(self, task: Task) -> None:
        """Returns when the work on it is done, and nothing is stuck."""
        await asyncio.sleep(task.work_s)  # sleeps: this is the work
        await self._free_in_loop.wait()

    def wait_until_done(self, task: Task) -> None:
        time.sleep(task.work_s)  # sleeps: this is the work
        self._free.wait()

    def end(self, task: Task) -> None:
        """Raises RejectMessage or Breakdown for what is to fail."""
        number = MessageKey.of(task.message.body)
        breaks = self._raising and is_mending(number)
        fails = is_failing(number) and not (breaks and task.message.attempt > 1)
        self.record.ended(task.incarnation, task.seq, failed=fails)
        if fails and breaks:
            self._broken.add((task.incarnation, task.seq))
            raise Breakdown(FAILED)
        if fails:
            raise RejectMessage(FAILED)
        with self._lock:
            self._done.append(task)

    def take_done(self) -> list[Task]:
        """What is done, and was said to the dispatcher: its settle is in what `flush` waits for."""
        with self._lock:
            done = [task for task in self._done if task.message.settled]
            self._done = [task for task in self._done if not task.message.settled]
        return done

    def confirmed(self, done: list[Task]) -> None:
        """A flush, and a welcome after it: settles of this incarnation count for good."""
        incarnation = self.incarnation()
        seqs = [task.seq for task in done if task.incarnation == incarnation]
        engine: Any = self._consumer._engine
        if seqs and engine.joined:  # else it has ended meanwhile, perhaps because it was taken back
            self.record.confirmed(incarnation, seqs)


async def run_async(consumer: GroupConsumer, work: Work) -> None:
    async def handle(message: Message) -> None:
        task = work.begin(message)
        if task is not None:
            await _work(work, task)

    await _with_notes(consumer, work, lambda: consumer.run(handle, concurrency=CONCURRENCY))


async def _work(work: Work, task: Task) -> None:
    try:
        await work.done(task)
    except asyncio.CancelledError:
        work.record.cancelled(task.incarnation, task.seq)
        raise
    work.end(task)


async def _with_notes(consumer: GroupConsumer, work: Work, run: Any) -> None:
    async def note_confirms() -> None:
        while True:
            done = work.take_done()
            with contextlib.suppress(SettlesInDoubt):
                await consumer.flush()
                await consumer.joined()
                work.confirmed(done)
            await asyncio.sleep(CONFIRM_INTERVAL_S)  # sleeps: between two looks

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, work.get_stuck)
    loop.add_signal_handler(signal.SIGUSR2, work.go_on)
    async with consumer:
        notes = asyncio.create_task(note_confirms())
        try:
            await run()
        finally:
            notes.cancel()
        work.is_over()


async def run_iterating(consumer: GroupConsumer, work: Work) -> None:
    """Groups side by side, each in its order: every message waits for the one before it."""
    tails: dict[bytes | None, asyncio.Task[None]] = {}
    running: set[asyncio.Task[None]] = set()

    async def handle(message: Message, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        task = work.begin(message)
        if task is None:
            return
        await work.done(task)
        if message.lost:
            work.record.cancelled(task.incarnation, task.seq)
            return
        try:
            work.end(task)
        except (RejectMessage, Breakdown) as rejected:
            await message.fail(str(rejected))
        else:
            await message.ack()

    async def iterate() -> None:
        async for message in consumer:
            work.record.received(work.incarnation(), message.seq)
            task = asyncio.create_task(handle(message, tails.get(message.group)))
            if message.group is not None:
                tails[message.group] = task
            running.add(task)
            task.add_done_callback(running.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
    await _with_notes(consumer, work, iterate)


def run_blocking(consumer: BlockingGroupConsumer, work: Work) -> None:
    def handle(message: BlockingMessage) -> None:
        task = work.begin(message)
        if task is None:
            return
        work.wait_until_done(task)
        if message.lost:
            work.record.cancelled(task.incarnation, task.seq)
        else:
            work.end(task)

    def note_confirms() -> None:
        done: list[Task] = []
        while True:
            # One round later: `settled` is set a moment before the settle is on its way.
            later = work.take_done()
            with contextlib.suppress(SettlesInDoubt):
                consumer.flush()
                consumer.joined()
                work.confirmed(done)
            done = later
            time.sleep(CONFIRM_INTERVAL_S)  # sleeps: between two looks

    consumer.open()
    threading.Thread(target=note_confirms, daemon=True).start()
    consumer.run(handle, concurrency=CONCURRENCY)
    work.is_over()


def main(arguments: list[str]) -> None:
    kind, url, prefix, lane, consumer_id, prefetch, record_file, work_ms, *flags = arguments
    how = {flag: flag in flags for flag in ("raising", "alike")}
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    record, options, urls = RecordWriter(Path(record_file)), {"prefix": prefix}, url.split(",")
    if kind == "blocking":
        blocking = BlockingGroupConsumer(urls, lane, consumer_id, int(prefetch), **options)
        run_blocking(blocking, Work(blocking, record, float(work_ms), **how))
        return
    consumer = GroupConsumer(urls, lane, consumer_id, int(prefetch), **options)
    run = run_iterating if kind == "iterating" else run_async
    asyncio.run(run(consumer, Work(consumer, record, float(work_ms), **how)))


if __name__ == "__main__":
    main(sys.argv[1:])
