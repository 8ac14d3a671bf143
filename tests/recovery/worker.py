"""A consumer process of the recovery tests: handles messages with the SDK and writes the total record.

    python -m tests.recovery.worker KIND URL PREFIX LANE CONSUMER PREFETCH RECORD_FILE WORK_MS

KIND is `async` or `blocking`. It ends in order on SIGTERM; a test may also kill it.
"""

from __future__ import annotations

import asyncio
import ctypes
import random
import signal
import sys
import threading
import time
from pathlib import Path

from dispatcher.client import (
    BlockingGroupConsumer,
    BlockingMessage,
    GroupConsumer,
    Message,
    RejectMessage,
)
from tests.recovery.record import FAILED, UNGROUPED, Number, RecordWriter

CONFIRM_INTERVAL_S = 0.02
CONCURRENCY = 8
_PDEATHSIG = 1


class Work:
    """What is done with each message, and what of it was said to be done."""

    def __init__(self, record: RecordWriter, work_ms: float) -> None:
        self._record = record
        self._work_s = work_ms / 1000
        self._lock = threading.Lock()
        self._done: list[int] = []

    def begin(self, message: Message | BlockingMessage) -> float:
        """Returns how long the work takes."""
        number = Number.of(message.body)
        assert message.group == (None if number.group == UNGROUPED else number.group.encode())
        self._record.started(number, message.seq, message.group_seq, message.epoch, message.attempt)
        return random.expovariate(1 / self._work_s) if self._work_s else 0.0

    def end(self, message: Message | BlockingMessage) -> None:
        """Raises RejectMessage for what is to fail."""
        self._record.ended(message.seq)
        if Number.of(message.body).fails:
            raise RejectMessage(FAILED)
        with self._lock:
            self._done.append(message.seq)

    def cancelled(self, message: Message | BlockingMessage) -> None:
        self._record.cancelled(message.seq)

    def take_done(self) -> list[int]:
        with self._lock:
            done, self._done = self._done, []
        return done

    def confirmed(self, seqs: list[int]) -> None:
        if seqs:
            self._record.confirmed(seqs)


async def run_async(consumer: GroupConsumer, work: Work) -> None:
    async def handle(message: Message) -> None:
        work_s = work.begin(message)
        try:
            await asyncio.sleep(work_s)  # sleeps: this is the work
        except asyncio.CancelledError:
            work.cancelled(message)
            raise
        work.end(message)

    async def note_confirms() -> None:
        while True:
            done = work.take_done()
            await consumer.flush()
            work.confirmed(done)
            await asyncio.sleep(CONFIRM_INTERVAL_S)  # sleeps: between two looks

    async with consumer:
        notes = asyncio.create_task(note_confirms())
        await consumer.run(handle, concurrency=CONCURRENCY)
        notes.cancel()


def run_blocking(consumer: BlockingGroupConsumer, work: Work) -> None:
    def handle(message: BlockingMessage) -> None:
        time.sleep(work.begin(message))  # sleeps: this is the work
        if message.lost:
            work.cancelled(message)
        else:
            work.end(message)

    consumer.run(handle, concurrency=CONCURRENCY)


def main(arguments: list[str]) -> None:
    kind, url, prefix, lane, consumer_id, prefetch, record_file, work_ms = arguments
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    work = Work(RecordWriter(Path(record_file)), float(work_ms))
    if kind == "async":
        asyncio.run(run_async(GroupConsumer(url, lane, consumer_id, int(prefetch), prefix=prefix), work))
    else:
        run_blocking(BlockingGroupConsumer(url, lane, consumer_id, int(prefetch), prefix=prefix), work)


if __name__ == "__main__":
    main(sys.argv[1:])
