"""One of the demo's consumers, in a process of its own: `python -m dispatcher.demo.consumer JSON`."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import redis
import redis.asyncio

from dispatcher.client import BlockingGroupConsumer, BlockingMessage, GroupConsumer, Message
from dispatcher.client.copies import Copy
from dispatcher.demo.records import HandlingRecorder
from dispatcher.demo.table import ApplyOutcome, AsyncTable, Table
from dispatcher.demo.workload import RowChange, decode

PREFETCH: Final = 50
GATE_POLL_S: Final = 0.005
#: Handlers at a time, each with a group of its own.
CONCURRENCY: Final = 8


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Everything that a consumer process has to know."""

    name: str
    blocking: bool
    amqp_url: str
    redis_url: str
    lane: str
    prefix: str
    records: str
    gate: str  # a file: it joins when that is there, so that the first consumer can't take all groups
    work_ms: float  # what a real consumer would need for a message

    def command(self) -> list[str]:
        """The command line that runs it."""
        return [sys.executable, "-m", "dispatcher.demo.consumer", json.dumps(asdict(self))]


def run(options: ConsumerOptions) -> None:
    """Consume until SIGTERM; then finish what is in hand and leave."""
    recorder = HandlingRecorder(Path(options.records))
    recorder.ready()
    while not Path(options.gate).exists():
        time.sleep(GATE_POLL_S)
    if options.blocking:
        _run_blocking(options, recorder)
    else:
        asyncio.run(_run_async(options, recorder))
    recorder.close()


def _begin(recorder: HandlingRecorder, message: Copy) -> tuple[int, RowChange]:
    number, change = decode(message.group, message.body)
    recorder.begin(number, change.group, message.seq, message.epoch, message.attempt)
    return number, change


async def _run_async(options: ConsumerOptions, recorder: HandlingRecorder) -> None:
    client = redis.asyncio.Redis.from_url(options.redis_url)
    table = AsyncTable(client, options.prefix)

    async def handle(message: Message) -> None:
        number, change = _begin(recorder, message)
        try:
            outcome = await table.apply(change, message.epoch, number)
            await asyncio.sleep(options.work_ms / 1_000)
        except asyncio.CancelledError:  # it was taken back
            recorder.end(message.seq, ApplyOutcome.LOST)
            raise
        recorder.end(message.seq, ApplyOutcome.LOST if message.lost else outcome)

    consumer = GroupConsumer(options.amqp_url, options.lane, options.name, PREFETCH, prefix=options.prefix)
    await consumer.open()
    await consumer.joined()
    recorder.joined()
    await consumer.run(handle, concurrency=CONCURRENCY)
    await client.aclose()


def _run_blocking(options: ConsumerOptions, recorder: HandlingRecorder) -> None:
    client = redis.Redis.from_url(options.redis_url)
    table = Table(client, options.prefix)

    def handle(message: BlockingMessage) -> None:
        number, change = _begin(recorder, message)
        outcome = table.apply(change, message.epoch, number)
        time.sleep(options.work_ms / 1_000)
        recorder.end(message.seq, ApplyOutcome.LOST if message.lost else outcome)

    consumer = BlockingGroupConsumer(
        options.amqp_url, options.lane, options.name, PREFETCH, prefix=options.prefix
    )
    consumer.open()
    consumer.joined()
    recorder.joined()
    consumer.run(handle, concurrency=CONCURRENCY)
    client.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    run(ConsumerOptions(**json.loads(sys.argv[1])))
