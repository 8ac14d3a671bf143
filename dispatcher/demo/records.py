"""What each consumer did, on disk before and after it did it: a kill -9 loses none of it.

A file per consumer, a line per fact, each written with one unbuffered append:
`ready`, `joined`, then `begin <number> <group, hex> <seq> <epoch> <attempt> <ns>` before a change is
applied and `end <seq> <outcome> <ns>` after it. Times are those of the
monotonic clock, which all processes share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dispatcher.demo.table import ApplyOutcome

_NO_GROUP: Final = "-"


@dataclass(slots=True)
class HandlingRecord:
    """One handling of one message by one consumer."""

    consumer: str
    number: int  # of the change in the workload
    group: bytes
    seq: int
    epoch: int
    attempt: int
    begun_ns: int
    ended_ns: int | None = None  # None: the consumer died while it handled it
    outcome: ApplyOutcome | None = None

    @property
    def is_done(self) -> bool:
        """Handled to the end by somebody whose word counts."""
        return self.outcome is not None and self.outcome is not ApplyOutcome.LOST


class HandlingRecorder:
    """Appends to one consumer's file. Any thread may use it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def ready(self) -> None:
        """The process is up; it waits for the start."""
        self._append("ready\n")

    def joined(self) -> None:
        """The dispatcher has welcomed it."""
        self._append("joined\n")

    def begin(self, number: int, group: bytes, seq: int, epoch: int, attempt: int) -> None:
        """To be called before the change is applied."""
        text = group.hex() or _NO_GROUP
        self._append(f"begin {number} {text} {seq} {epoch} {attempt} {time.monotonic_ns()}\n")

    def end(self, seq: int, outcome: ApplyOutcome) -> None:
        """To be called after it, and before the message is settled."""
        self._append(f"end {seq} {outcome} {time.monotonic_ns()}\n")

    def close(self) -> None:
        os.close(self._file)

    def _append(self, line: str) -> None:
        os.write(self._file, line.encode())


class RecordReader:
    """Reads a consumer's file while it grows."""

    def __init__(self, consumer: str, path: Path) -> None:
        self.consumer = consumer
        self.handlings: list[HandlingRecord] = []
        self.is_ready = self.has_joined = False
        self._path = path
        self._position = 0
        self._rest = b""
        self._open: dict[int, HandlingRecord] = {}  # by seq

    def read(self) -> list[HandlingRecord]:
        """What was ended since the last call. A line that is cut off waits for its end."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        ended = [self._take(line.decode().split(" ")) for line in lines]
        return [handling for handling in ended if handling is not None]

    def _take(self, fields: list[str]) -> HandlingRecord | None:
        if fields[0] in ("ready", "joined"):
            self.is_ready = True
            self.has_joined = fields[0] == "joined"
            return None
        if fields[0] == "begin":
            number, seq, epoch, attempt, at_ns = (int(fields[n]) for n in (1, 3, 4, 5, 6))
            group = b"" if fields[2] == _NO_GROUP else bytes.fromhex(fields[2])
            handling = HandlingRecord(self.consumer, number, group, seq, epoch, attempt, at_ns)
            self.handlings.append(handling)
            self._open[seq] = handling
            return None
        handling = self._open.pop(int(fields[1]))
        handling.outcome, handling.ended_ns = ApplyOutcome(fields[2]), int(fields[3])
        return handling


def all_handlings(readers: Iterable[RecordReader]) -> Iterator[HandlingRecord]:
    """Everything that was read, of all consumers."""
    for reader in readers:
        yield from reader.handlings
