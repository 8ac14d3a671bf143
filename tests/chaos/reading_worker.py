"""An application that knows nothing of groups: it reads the queue of a hand-over consumer, does one message
after the other, and acks what it has done or rejects what it can't do. It writes the total record.

    python -m tests.chaos.reading_worker KIND URL PREFIX LANE CONSUMER PREFETCH RECORD_FILE WORK_MS

Each of its connections is a life of its own. It reads exclusively, so that RabbitMQ never has two readers of
one queue: X-7 promises nothing for these. On SIGTERM it ends as soon as it has nothing in hand.

KIND `remembering`: it drops repeated messages, word for word as docs/protocol.md says.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from dispatcher.judge.record import MessageKey, RecordWriter
from tests.recovery.rules import is_failing, is_mending

#: Before it tries again: RabbitMQ is away, or its queue is being read back.
RETRY_S = 0.1
#: After two of these without a sign of life RabbitMQ or the reader gives the connection up.
HEARTBEAT_S = 5
#: So many numbers are enough.
REMEMBERED = 60_000
#: In this time one that was told to end has had nothing in hand once.
END_WITHIN_S = 20.0


class ReadingConsumer:
    """Reads until it is told to end."""

    def __init__(
        self, url: str, queue: str, prefetch: int, record: RecordWriter, work_ms: float, *, remembers: bool
    ) -> None:
        self._parameters = [pika.URLParameters(node) for node in url.split(",")]
        for parameters in self._parameters:
            parameters.heartbeat = HEARTBEAT_S
        self._queue = queue
        self._prefetch = prefetch
        self._record = record
        self._work_s = work_ms / 1000
        self._remembers = remembers
        self._ended: dict[int, bool] = {}  # by number: whether it failed
        self._lives = 0
        self._in_hand: deque[tuple[int, dict[str, Any], bytes]] = deque()
        self.told_at: float | None = None

    def run(self) -> None:
        """Returns when it was told to end."""
        while self.told_at is None:
            connection = None
            life = f"r{self._lives + 1}"
            try:
                connection = pika.BlockingConnection(random.choice(self._parameters))
                channel = self._consume(connection, life)
                while not self._may_end():
                    connection.process_data_events(time_limit=0 if self._in_hand else 0.05)
                    if self._in_hand:
                        self._work(channel, life)
                connection.close()
            except (pika.exceptions.AMQPError, AMQPConnectorException):
                time.sleep(RETRY_S)  # sleeps: before the next attempt
            if self._lives and life == f"r{self._lives}":
                self._record.over(life, "lost")
            if connection is not None and connection.is_open:
                with contextlib.suppress(pika.exceptions.AMQPError):
                    connection.close()

    def _may_end(self) -> bool:
        if self.told_at is None:
            return False
        return not self._in_hand or time.monotonic() > self.told_at + END_WITHIN_S

    def _consume(self, connection: Any, life: str) -> Any:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=self._prefetch)
        self._in_hand.clear()

        def received(_: Any, method: Any, properties: Any, body: bytes) -> None:
            self._record.received(life, properties.headers["x-dispatch-seq"])
            self._in_hand.append((method.delivery_tag, properties.headers, body))

        def cancelled(_: Any) -> None:
            raise pika.exceptions.ConsumerCancelled("its queue is gone")

        channel.add_on_cancel_callback(cancelled)
        channel.basic_consume(self._queue, received, exclusive=True)
        self._lives += 1
        self._record.welcomed(life, 1)
        return channel

    def _work(self, channel: Any, life: str) -> None:
        tag, headers, body = self._in_hand.popleft()
        number, seq, attempt = MessageKey.of(body), headers["x-dispatch-seq"], headers["x-dispatch-attempt"]
        if self._remembers and seq in self._ended:
            self._end(channel, tag, failed=self._ended[seq])
            return
        group_seq, epoch = headers.get("x-dispatch-group-seq", 0), headers.get("x-dispatch-epoch", 0)
        self._record.started(life, number, seq, group_seq, epoch, attempt)
        time.sleep(random.expovariate(1 / self._work_s))  # sleeps: this is the work
        fails = is_failing(number) and not (is_mending(number) and attempt > 1)
        self._record.ended(life, seq, failed=fails)
        self._ended[seq] = fails
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]
        self._end(channel, tag, failed=fails)

    @staticmethod
    def _end(channel: Any, tag: int, *, failed: bool) -> None:
        if failed:
            channel.basic_reject(tag, requeue=False)
        else:
            channel.basic_ack(tag)


def main(arguments: list[str]) -> None:
    kind, url, prefix, lane, consumer_id, prefetch, record_file, work_ms, *_ = arguments
    record = RecordWriter(Path(record_file))
    queue = f"{prefix}.{lane}.consumer.{consumer_id}"
    reader = ReadingConsumer(
        url, queue, int(prefetch), record, float(work_ms), remembers=kind == "remembering"
    )  # fmt: skip

    def told(*_: object) -> None:
        reader.told_at = time.monotonic()

    signal.signal(signal.SIGTERM, told)
    reader.run()


if __name__ == "__main__":
    main(sys.argv[1:])
