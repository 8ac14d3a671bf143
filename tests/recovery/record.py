"""The total record: what every consumer process did with every message, written so that a kill loses nothing.

One file per process of a consumer, one line per fact, each written with one system call. Times are
CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

UNGROUPED = "-"
#: The reason of what its consumer gave up.
FAILED = "every fortieth"
RECEIVED, STARTED, ENDED, CANCELLED, CONFIRMED = "received", "started", "ended", "cancelled", "confirmed"
#: Its handler is called again in the same hand-over.
RETRIED = "retried"
#: Facts about an incarnation.
WELCOMED, OVER = "welcomed", "over"


class Number(NamedTuple):
    """Which message: the `number`-th of its producer for its group in that inbound queue.

    `publish` counts the connections that its producer lost: what was not confirmed then is published again,
    which makes another message.
    """

    queue: str
    group: str  # UNGROUPED: it has none
    publish: int
    number: int
    producer: str = "p"

    @property
    def closes(self) -> bool:
        """Its producer says that the group ends with it."""
        return self.group != UNGROUPED and self.number % 25 == 0

    @property
    def fails(self) -> bool:
        """Its consumer gives it up."""
        return self.number % 40 == 7

    @property
    def mends(self) -> bool:
        """Of those that fail: its second hand-over succeeds, where consumers retry."""
        return self.number % 80 == 47

    def body(self) -> bytes:
        return " ".join(map(str, self)).encode()

    @classmethod
    def of(cls, body: bytes) -> Number:
        """Of the body of a message, or of a line of a record."""
        queue, group, publish, number, producer = body.decode().split()[:5]
        return cls(queue, group, int(publish), int(number), producer)


@dataclass(slots=True)
class Handling:
    """One call of a handler. A `life` is what the guarantees hold for: a process, or an incarnation of it."""

    life: str
    message: Number
    seq: int
    group_seq: int
    epoch: int
    attempt: int
    start: float
    end: float | None = None
    cancelled: float | None = None  # the consumer said that the message was lost
    confirmed: bool = False  # the broker had its settle
    confirmed_at: float | None = None  # when its consumer noted that
    received: float | None = None
    failed: bool = False  # it ended so


@dataclass(slots=True)
class Incarnation:
    """What its process said about one incarnation."""

    process: str
    name: str
    welcomes: list[float] = field(default_factory=list)
    over: float | None = None
    end: str = ""  # why it is over

    @property
    def life(self) -> str:
        return f"{self.process}/{self.name}"


class RecordWriter:
    """Appends to the file of one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1  # opened with the first fact

    def received(self, incarnation: str, seq: int) -> None:
        self._write(RECEIVED, incarnation, seq)

    def started(
        self, incarnation: str, message: Number, seq: int, group_seq: int, epoch: int, attempt: int
    ) -> None:
        self._write(STARTED, incarnation, seq, group_seq, epoch, attempt, *message)

    def retried(self, incarnation: str, seq: int) -> None:
        self._write(RETRIED, incarnation, seq)

    def ended(self, incarnation: str, seq: int, *, failed: bool = False) -> None:
        self._write(ENDED, incarnation, seq, *(["failed"] if failed else []))

    def cancelled(self, incarnation: str, seq: int) -> None:
        self._write(CANCELLED, incarnation, seq)

    def confirmed(self, incarnation: str, seqs: Iterable[int]) -> None:
        self._write(CONFIRMED, incarnation, ",".join(map(str, seqs)))

    def welcomed(self, incarnation: str, n: int) -> None:
        self._write(WELCOMED, incarnation, n)

    def over(self, incarnation: str, end: str) -> None:
        self._write(OVER, incarnation, end.replace(" ", "-"))

    def _write(self, kind: str, incarnation: str, *fields: object) -> None:
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        line = " ".join(map(str, (kind, time.monotonic(), incarnation, *fields)))
        os.write(self._file, line.encode() + b"\n")


class LifeRecord:
    """One file, read."""

    def __init__(self, path: Path, *, by_incarnation: bool = False) -> None:
        self.process = path.stem
        self.handlings: list[Handling] = []
        self.incarnations: dict[str, Incarnation] = {}
        self._by_incarnation = by_incarnation
        self._latest: dict[tuple[str, int], Handling] = {}  # by incarnation and seq
        self._received: dict[tuple[str, int], float] = {}
        # The last line may be the half of one.
        whole = path.read_bytes().rpartition(b"\n")[0].decode()
        for line in whole.splitlines():
            kind, at, incarnation, *rest = line.split(" ")
            self._read(kind, float(at), incarnation, rest)

    def _read(self, kind: str, at: float, name: str, rest: list[str]) -> None:
        incarnation = self.incarnations.setdefault(name, Incarnation(self.process, name))
        match kind:
            case "received":
                self._received[name, int(rest[0])] = at
            case "started":
                self._read_start(at, incarnation, rest)
            case "retried":
                handling = self._latest[name, int(rest[0])]
                handling.end, handling.failed = None, False
            case "ended":
                handling = self._latest[name, int(rest[0])]
                handling.end, handling.failed = at, rest[1:] == ["failed"]
            case "cancelled":
                self._latest[name, int(rest[0])].cancelled = at
            case "confirmed":
                for seq in map(int, rest[0].split(",")):
                    handling = self._latest[name, seq]
                    handling.confirmed, handling.confirmed_at = True, at
            case "welcomed":
                incarnation.welcomes.append(at)
            case "over":
                incarnation.over, incarnation.end = at, rest[0]

    def _read_start(self, at: float, incarnation: Incarnation, rest: list[str]) -> None:
        seq, group_seq, epoch, attempt = map(int, rest[:4])
        message = Number.of(" ".join(rest[4:]).encode())
        life = incarnation.life if self._by_incarnation else self.process
        handling = Handling(life, message, seq, group_seq, epoch, attempt, at)
        handling.received = self._received.get((incarnation.name, seq))
        self.handlings.append(handling)
        self._latest[incarnation.name, seq] = handling


def read_record(folder: Path) -> list[Handling]:
    """All handlings of all processes, by their start; a life is a process."""
    return in_order(LifeRecord(path) for path in sorted(folder.glob("*.record")))


def in_order(lives: Iterable[LifeRecord]) -> list[Handling]:
    """The handlings of all of these by their start."""
    return sorted((h for life in lives for h in life.handlings), key=lambda handling: handling.start)
