"""The consumer that was written from docs/protocol.md alone, as a process that writes the total record.

    python -m tests.chaos.bare_worker KIND URL PREFIX LANE CONSUMER PREFETCH RECORD_FILE WORK_MS

The arguments are those of tests.recovery.worker with `raising`. On SIGTERM it dies, and others get its work.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

from dispatcher.judge.record import MessageKey, RecordWriter
from tests.client.bare_pika_consumer import BareConsumer
from tests.recovery.rules import FAILED, is_failing, is_mending


class RecordingConsumer(BareConsumer):  # type: ignore[misc]
    """Records at the places where the bare one takes, handles and settles."""

    def __init__(self, url: str, lane: str, consumer: str, record: RecordWriter, work_ms: float) -> None:
        self.record = record
        self.work_s = work_ms / 1000
        self.name = ""
        self.welcome_n = 0
        self.to_confirm: list[int] = []  # said before this connection's welcome
        self.urls = url.split(",")
        super().__init__(url, lane, consumer)

    def connect(self) -> None:
        """To any of the nodes, where there are several."""
        self.url = random.choice(self.urls)
        super().connect()

    def become_new(self) -> None:
        if self.name:
            self.record.over(self.name, "taken")
        super().become_new()
        self.name = self.incarnation[:8]
        self.welcome_n, self.to_confirm = 0, []

    def received(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        before = set(self.in_hand)
        super().received(channel, method, properties, body)
        for seq in self.in_hand.keys() - before:
            self.record.received(self.name, seq)
            self.in_hand[seq] = (self.in_hand[seq][0], (body, properties.headers))

    def handle(self, copy: Any) -> str | None:
        body, headers = copy
        number = MessageKey.of(body)
        seq = headers["x-dispatch-seq"]
        self.record.started(
            self.name, number, seq, headers.get("x-dispatch-group-seq", 0),
            headers.get("x-dispatch-epoch", 0), headers["x-dispatch-attempt"],
        )  # fmt: skip
        time.sleep(random.expovariate(1 / self.work_s))  # sleeps: this is the work
        fails = is_failing(number) and not (is_mending(number) and headers["x-dispatch-attempt"] > 1)
        self.record.ended(self.name, seq, failed=fails)
        return FAILED if fails else None

    def say(self, kind: str, **fields: Any) -> None:
        super().say(kind, **fields)  # returns when the broker has confirmed it
        if kind == "settle":
            self.to_confirm += [first for first, _ in fields["acked"] if self.outcomes[first] is None]
            self.note_confirmed()

    def told(self, kind: str, answer: Any) -> None:
        super().told(kind, answer)
        if self.welcomed and self.n != self.welcome_n:
            self.welcome_n = self.n
            self.record.welcomed(self.name, self.n)
            self.note_confirmed()

    def note_confirmed(self) -> None:
        """What was settled counts for good once this connection was welcomed."""
        if self.welcomed and self.to_confirm:
            self.record.confirmed(self.name, self.to_confirm)
            self.to_confirm = []


def main(arguments: list[str]) -> None:
    _, url, _, lane, consumer_id, _, record_file, work_ms, *_ = arguments
    record = RecordWriter(Path(record_file))
    RecordingConsumer(url, lane, consumer_id, record, float(work_ms)).run_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
