"""A producer process: sends numbered messages at a rate and records what the broker took.

    python -m tests.chaos.producer KIND URL QUEUES GROUPS RATE NAME RECORD_FILE SEED EXCHANGE

KIND: `raw` pipelines over a bare connection; `async` and `blocking` are the SDK's. On SIGTERM it sends
nothing new and ends when everything sent is confirmed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dispatcher.client import BlockingGroupProducer, GroupProducer
from dispatcher.errors import SendFailed
from dispatcher.judge.record import UNGROUPED, MessageKey
from dispatcher.settings import RabbitSettings
from tests.recovery.load import CLUSTER_HEARTBEAT_S, NumberingProducer, Numbers
from tests.recovery.rules import is_closing

SENT, CONFIRMED, REPEATED = "sent", "confirmed", "repeated"
#: Sent and not confirmed at most: after a lost connection all of these may be in the broker twice.
OUTSTANDING_MAX = 50


class ProducerRecord:
    """Appends to the file of one process; a kill loses nothing of it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, kind: str, numbers: Iterable[MessageKey]) -> None:
        at = time.monotonic()
        lines = [f"{kind} {at} {' '.join(map(str, number))}\n" for number in numbers]
        if lines:
            os.write(self._file, "".join(lines).encode())


class Produced(NamedTuple):
    """What all producers wrote down."""

    sent: dict[MessageKey, float]  # when it went first; the broker may have it
    confirmed: dict[MessageKey, float]  # when the broker said so
    repeated: frozenset[MessageKey]  # the broker may have it more than once


def read_produced(paths: Iterable[Path]) -> Produced:
    sent: dict[MessageKey, float] = {}
    confirmed: dict[MessageKey, float] = {}
    repeated = set()
    for path in paths:
        for line in path.read_bytes().rpartition(b"\n")[0].decode().splitlines():
            kind, at, rest = line.split(" ", 2)
            number = MessageKey.of(rest.encode())
            if kind == SENT:
                sent.setdefault(number, float(at))
            elif kind == CONFIRMED:
                confirmed[number] = float(at)
            else:
                repeated.add(number)
    return Produced(sent, confirmed, frozenset(repeated))


class _Raw(NumberingProducer):
    record: ProducerRecord

    def note_sent(self, number: MessageKey) -> None:
        self.record.write(SENT, [number])

    def note_confirmed(self, numbers: list[MessageKey]) -> None:
        self.record.write(CONFIRMED, numbers)


async def run_raw(producer: _Raw, record: ProducerRecord) -> None:
    producer.record = record
    producer.start()
    await _told_to_stop()
    await producer.stop()


async def _told_to_stop() -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()


class Outstanding(logging.Handler):
    """What was given to a producer of the SDK and not answered; all of it may be sent twice when the
    connection is lost, which the SDK says in its log."""

    def __init__(self, record: ProducerRecord) -> None:
        super().__init__(logging.DEBUG)
        self._record = record
        self._lock2 = threading.Lock()
        self._numbers: set[MessageKey] = set()
        client = logging.getLogger("dispatcher.client")
        client.setLevel(logging.DEBUG)
        client.addHandler(self)

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: MessageKey) -> None:
        self._record.write(SENT, [number])
        with self._lock2:
            self._numbers.add(number)

    def answered(self, number: MessageKey, answer: asyncio.Future[str] | Future[str]) -> None:
        with self._lock2:
            self._numbers.discard(number)
        error = answer.exception()
        if error is None:
            self._record.write(CONFIRMED, [number])
        elif not isinstance(error, SendFailed):
            raise error

    def emit(self, record: logging.LogRecord) -> None:
        if str(record.msg).startswith("producer:"):
            with self._lock2:
                repeated = list(self._numbers)
            self._record.write(REPEATED, repeated)


def _send(
    producer: GroupProducer | BlockingGroupProducer, number: MessageKey, outstanding: Outstanding
) -> None:
    outstanding.add(number)
    group = None if number.group == UNGROUPED else number.group
    headers: dict[str | bytes, int] = {} if is_closing(number) else {"x-group-seq": number.number}
    answer = producer.submit(
        number.body(), group, headers=headers, routing_key=number.queue, close=is_closing(number)
    )
    answer.add_done_callback(partial(outstanding.answered, number))


async def run_async(
    urls: list[str], numbers: Numbers, rate: float, outstanding: Outstanding, exchange: str
) -> None:
    told = asyncio.create_task(_told_to_stop())
    async with GroupProducer(urls, exchange=exchange) as producer:
        while not told.done():
            if len(outstanding) < OUTSTANDING_MAX:
                _send(producer, numbers.next(), outstanding)
            await asyncio.sleep(1 / rate)  # sleeps: the rate


def run_blocking(
    urls: list[str], numbers: Numbers, rate: float, outstanding: Outstanding, exchange: str
) -> None:
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    with BlockingGroupProducer(urls, exchange=exchange) as producer:
        while not told.wait(1 / rate):
            if len(outstanding) < OUTSTANDING_MAX:
                _send(producer, numbers.next(), outstanding)


def _settings(urls: list[str]) -> RabbitSettings:
    if len(urls) == 1:
        return RabbitSettings(url=urls[0])
    return RabbitSettings(urls=tuple(urls), heartbeat_ms=CLUSTER_HEARTBEAT_S * 1_000)


def main(arguments: list[str]) -> None:
    kind, url, queues, groups, rate, name, path, seed, exchange = arguments
    record = ProducerRecord(Path(path))
    urls = url.split(",")
    if kind == "raw":
        raw = _Raw(_settings(urls), queues.split(","), int(groups), float(rate), int(seed), name, exchange)
        asyncio.run(run_raw(raw, record))
        return
    numbers = Numbers(queues.split(","), int(groups), int(seed), name)
    outstanding = Outstanding(record)
    if kind == "async":
        asyncio.run(run_async(urls, numbers, float(rate), outstanding, exchange))
    else:
        run_blocking(urls, numbers, float(rate), outstanding, exchange)


if __name__ == "__main__":
    main(sys.argv[1:])
