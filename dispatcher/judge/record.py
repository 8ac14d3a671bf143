"""The record: what every consumer process did with every message, written so that a kill loses nothing.

One file per process of a consumer, one line per fact, each written with one system call. Times are
CLOCK_MONOTONIC in seconds, which all processes of a machine share. A line:

    <kind> <time> <incarnation> <fields of the kind, by spaces>
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

#: In place of a group or an incarnation: there is none.
UNGROUPED: Final = "-"
NO_INCARNATION: Final = "-"
#: Facts about a process.
READY = "ready"
#: Facts about a message.
RECEIVED, STARTED, ENDED, CANCELLED, CONFIRMED = "received", "started", "ended", "cancelled", "confirmed"
#: Its handler is called again in the same hand-over.
RETRIED = "retried"
#: Facts about an incarnation.
WELCOMED, OVER = "welcomed", "over"
#: How a handling ended whose consumer gave the message up.
FAILED: Final = "failed"


class MessageKey(NamedTuple):
    """Which message: the `number`-th of its producer for its group in that inbound queue.

    `publish` counts the connections that its producer lost: a message that was not confirmed then is
    published again, which makes another message. Queue, group and producer have no spaces.
    """

    queue: str
    group: str  # UNGROUPED: it has none
    publish: int
    number: int
    producer: str = "p"

    def body(self) -> bytes:
        """A text that names it, for a message's body or a line of a record."""
        return " ".join(map(str, self)).encode()

    @classmethod
    def of(cls, body: bytes) -> MessageKey:
        """What `body` has named; more words may follow."""
        queue, group, publish, number, producer = body.decode().split()[:5]
        return cls(queue, group, int(publish), int(number), producer)


@dataclass(slots=True)
class HandlingRecord:
    """One call of a handler. A `life` is what the guarantees hold for: a process, or an incarnation of it."""

    life: str
    message: MessageKey
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
    failed: bool = False  # it ended so: its consumer gave the message up
    outcome: str = ""  # what the handler says beside


@dataclass(slots=True)
class Incarnation:
    """What its process said about one incarnation."""

    process: str
    name: str
    welcomes: list[float] = field(default_factory=list)
    over: float | None = None
    end: str = ""  # why it has ended

    @property
    def life(self) -> str:
        return f"{self.process}/{self.name}"


class RecordWriter:
    """Appends to the file of one process. Any thread may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1  # opened with the first fact

    def ready(self) -> None:
        """The process is up."""
        self._write(READY, NO_INCARNATION)

    def received(self, incarnation: str, seq: int) -> None:
        self._write(RECEIVED, incarnation, seq)

    def started(
        self, incarnation: str, message: MessageKey, seq: int, group_seq: int, epoch: int, attempt: int
    ) -> None:
        """To be called before anything is done for the message."""
        self._write(STARTED, incarnation, seq, group_seq, epoch, attempt, *message)

    def retried(self, incarnation: str, seq: int) -> None:
        self._write(RETRIED, incarnation, seq)

    def ended(self, incarnation: str, seq: int, *, failed: bool = False, outcome: str = "") -> None:
        """To be called after that, and before the message is settled; `outcome` has no spaces."""
        word = FAILED if failed else outcome
        self._write(ENDED, incarnation, seq, *([word] if word else []))

    def cancelled(self, incarnation: str, seq: int) -> None:
        self._write(CANCELLED, incarnation, seq)

    def confirmed(self, incarnation: str, seqs: Iterable[int]) -> None:
        self._write(CONFIRMED, incarnation, ",".join(map(str, seqs)))

    def welcomed(self, incarnation: str, n: int) -> None:
        self._write(WELCOMED, incarnation, n)

    def over(self, incarnation: str, end: str) -> None:
        self._write(OVER, incarnation, end.replace(" ", "-"))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, kind: str, incarnation: str, *fields: object) -> None:
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        line = " ".join(map(str, (kind, time.monotonic(), incarnation, *fields)))
        os.write(self._file, line.encode() + b"\n")


class LifeRecord:
    """One file, read; its name is that of the process. `read` goes on where the file has grown."""

    def __init__(self, path: Path, *, by_incarnation: bool = False) -> None:
        """`by_incarnation`: a life is an incarnation, not the process."""
        self.process = path.stem
        self.handlings: list[HandlingRecord] = []
        self.incarnations: dict[str, Incarnation] = {}
        self.is_ready = False
        self._path = path
        self._position = 0
        self._rest = b""  # the last line may be the half of one
        self._by_incarnation = by_incarnation
        self._latest: dict[tuple[str, int], HandlingRecord] = {}  # by incarnation and seq
        self._received: dict[tuple[str, int], float] = {}
        self.read()

    def read(self) -> list[HandlingRecord]:
        """Read the lines that were added since the last call; returns the handlings that ended in them."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            added = file.read()
        self._position += len(added)
        *lines, self._rest = (self._rest + added).split(b"\n")
        ended: list[HandlingRecord] = []
        for line in lines:
            kind, at, incarnation, *rest = line.decode().split(" ")
            if kind == READY:
                self.is_ready = True
            elif kind == ENDED:
                ended.append(self._read_end(float(at), incarnation, rest))
            else:
                self._read(kind, float(at), incarnation, rest)
        return ended

    @property
    def has_joined(self) -> bool:
        """A dispatcher has welcomed it."""
        return any(incarnation.welcomes for incarnation in self.incarnations.values())

    def _read_end(self, at: float, name: str, rest: list[str]) -> HandlingRecord:
        handling = self._latest[name, int(rest[0])]
        handling.end, handling.outcome = at, rest[1] if len(rest) > 1 else ""
        handling.failed = handling.outcome == FAILED
        return handling

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
        message = MessageKey.of(" ".join(rest[4:]).encode())
        life = incarnation.life if self._by_incarnation else self.process
        handling = HandlingRecord(life, message, seq, group_seq, epoch, attempt, at)
        handling.received = self._received.get((incarnation.name, seq))
        self.handlings.append(handling)
        self._latest[incarnation.name, seq] = handling


def read_record(folder: Path) -> list[HandlingRecord]:
    """All handlings of all processes, by their start; a life is a process."""
    return in_order(LifeRecord(path) for path in sorted(folder.glob("*.record")))


def in_order(lives: Iterable[LifeRecord]) -> list[HandlingRecord]:
    """The handlings of all of these by their start."""
    return sorted((h for life in lives for h in life.handlings), key=lambda handling: handling.start)
