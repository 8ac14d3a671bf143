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
from dispatcher.demo.table import ApplyOutcome, AsyncTable, Table
from dispatcher.demo.workload import RowChange, decode, message_key
from dispatcher.judge.record import RecordWriter

PREFETCH: Final = 50
GATE_POLL_S: Final = 0.005
#: Handlers at a time, each with a group of its own.
CONCURRENCY: Final = 8
#: Its life is the process; it needs no name of its own in the record.
_INCARNATION: Final = "1"


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
    """Consume until SIGTERM; then finish the messages in hand and leave."""
    record = RecordWriter(Path(options.records))
    record.ready()
    while not Path(options.gate).exists():
        time.sleep(GATE_POLL_S)
    if options.blocking:
        _run_blocking(options, record)
    else:
        asyncio.run(_run_async(options, record))
    record.close()


def _begin(record: RecordWriter, message: Copy) -> tuple[int, RowChange]:
    number, change = decode(message.group, message.body)
    key = message_key(number, change.group)
    record.started(_INCARNATION, key, message.seq, message.group_seq, message.epoch, message.attempt)
    return number, change


def _end(record: RecordWriter, message: Copy, outcome: ApplyOutcome) -> None:
    """Record the end of a handling; a message that was taken back meanwhile doesn't count."""
    if message.lost:
        record.cancelled(_INCARNATION, message.seq)
    else:
        record.ended(_INCARNATION, message.seq, outcome=outcome)


async def _run_async(options: ConsumerOptions, record: RecordWriter) -> None:
    client = redis.asyncio.Redis.from_url(options.redis_url)
    table = AsyncTable(client, options.prefix)

    async def handle(message: Message) -> None:
        number, change = _begin(record, message)
        try:
            outcome = await table.apply(change, message.epoch, number)
            await asyncio.sleep(options.work_ms / 1_000)
        except asyncio.CancelledError:  # it was taken back
            record.cancelled(_INCARNATION, message.seq)
            raise
        _end(record, message, outcome)

    consumer = GroupConsumer(options.amqp_url, options.lane, options.name, PREFETCH, prefix=options.prefix)
    await consumer.open()
    await consumer.joined()
    record.welcomed(_INCARNATION, 1)
    await consumer.run(handle, concurrency=CONCURRENCY)
    await client.aclose()


def _run_blocking(options: ConsumerOptions, record: RecordWriter) -> None:
    client = redis.Redis.from_url(options.redis_url)
    table = Table(client, options.prefix)

    def handle(message: BlockingMessage) -> None:
        number, change = _begin(record, message)
        outcome = table.apply(change, message.epoch, number)
        time.sleep(options.work_ms / 1_000)
        _end(record, message, outcome)

    consumer = BlockingGroupConsumer(
        options.amqp_url, options.lane, options.name, PREFETCH, prefix=options.prefix
    )
    consumer.open()
    consumer.joined()
    record.welcomed(_INCARNATION, 1)
    consumer.run(handle, concurrency=CONCURRENCY)
    client.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    run(ConsumerOptions(**json.loads(sys.argv[1])))
