"""The total record: what every consumer process did with every message, written so that a kill loses nothing.

One file per life of a consumer process, one line per fact, each written with one system call. Times are
CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

UNGROUPED = "-"
#: The reason of what its consumer gave up.
FAILED = "every fortieth"
STARTED, ENDED, CANCELLED, CONFIRMED = "started", "ended", "cancelled", "confirmed"


class Number(NamedTuple):
    """Which message: the `number`-th of its group in that inbound queue; `attempt` counts its publishes.

    A producer that lost its connection publishes again what was not confirmed, which makes another message.
    """

    queue: str
    group: str  # UNGROUPED: it has none
    publish: int
    number: int

    @property
    def closes(self) -> bool:
        """Its producer says that the group ends with it."""
        return self.group != UNGROUPED and self.number % 25 == 0

    @property
    def fails(self) -> bool:
        """Its consumer gives it up."""
        return self.number % 40 == 7

    def body(self) -> bytes:
        return " ".join(map(str, self)).encode()

    @classmethod
    def of(cls, body: bytes) -> Number:
        queue, group, publish, number = body.decode().split()
        return cls(queue, group, int(publish), int(number))


@dataclass(slots=True)
class Handling:
    """One call of a handler."""

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


class RecordWriter:
    """Appends to the file of one life."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1  # opened with the first fact

    def started(self, message: Number, seq: int, group_seq: int, epoch: int, attempt: int) -> None:
        fields = (STARTED, seq, time.monotonic(), group_seq, epoch, attempt, *message)
        self._write(" ".join(map(str, fields)))

    def ended(self, seq: int) -> None:
        self._write(f"{ENDED} {seq} {time.monotonic()}")

    def cancelled(self, seq: int) -> None:
        self._write(f"{CANCELLED} {seq} {time.monotonic()}")

    def confirmed(self, seqs: Iterable[int]) -> None:
        self._write(f"{CONFIRMED} {','.join(map(str, seqs))} {time.monotonic()}")

    def _write(self, line: str) -> None:
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self._file, line.encode() + b"\n")


def read_record(folder: Path) -> list[Handling]:
    """All handlings of all lives, by their start."""
    handlings = [h for path in sorted(folder.glob("*.record")) for h in _read_life(path)]
    return sorted(handlings, key=lambda handling: handling.start)


def _read_life(path: Path) -> list[Handling]:
    life = path.stem
    handlings: list[Handling] = []
    latest: dict[int, Handling] = {}  # by seq
    whole = path.read_bytes().rpartition(b"\n")[0].decode()
    for line in whole.splitlines():
        kind, seqs, at, *more = line.split(" ")
        if kind == STARTED:
            group_seq, epoch, attempt = map(int, more[:3])
            message = Number(more[3], more[4], int(more[5]), int(more[6]))
            handling = Handling(life, message, int(seqs), group_seq, epoch, attempt, float(at))
            handlings.append(handling)
            latest[handling.seq] = handling
            continue
        for seq in map(int, seqs.split(",")):
            if kind == ENDED:
                latest[seq].end = float(at)
            elif kind == CANCELLED:
                latest[seq].cancelled = float(at)
            else:
                latest[seq].confirmed = True
    return handlings
