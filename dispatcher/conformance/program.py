"""The program under test, as the suite sees it: a process, lines in and out, and the record of its calls.

Its handler decides nothing: each call is reported, and the suite says how it ends. So the record is the
suite's own. The end of a call is written down before the program is told, its beginning after it was read.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dispatcher.errors import DispatcherError
from dispatcher.judge.record import UNGROUPED, HandlingRecord, MessageKey

#: Lines of a program's stderr that a report shows.
_LAST_LINES: Final = 5
#: A line holds one message of the suite, or ids.
_LINE_BYTES_MAX: Final = 1 << 20


@dataclass(slots=True, eq=False)
class Call:
    """One call of the program's handler that has not ended."""

    id: int
    number: int  # 1 for the first call in this hand-over
    handling: HandlingRecord

    @property
    def message(self) -> MessageKey:
        return self.handling.message


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """What a program is told when it starts."""

    prefix: str
    lane: str
    consumer: str
    prefetch: int
    concurrency: int


@dataclass(slots=True)
class CallTimes:
    """When the calls of one hand-over began and ended."""

    begun: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)


class Program:
    """One process of the program under test. `on_call` is told of each call when it begins."""

    def __init__(
        self, command: Sequence[str], options: ProgramOptions, url: str, life: str, log: Path,
        on_call: Callable[[Program, Call], None],
    ) -> None:  # fmt: skip
        self.options = options
        self.life = life
        self.handlings: list[HandlingRecord] = []
        self.problems: list[str] = []
        self.open: dict[int, Call] = {}
        self.lost: list[Call] = []
        self.times: dict[tuple[MessageKey, int], CallTimes] = {}  # by message and hand-over
        self._command = command
        self._url = url
        self._log = log
        self._on_call = on_call
        self._latest: dict[int, HandlingRecord] = {}  # by number

    @property
    def consumer(self) -> str:
        return self.options.consumer

    async def start(self) -> None:
        """Raises DispatcherError when the command can't be run."""
        try:
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                    stderr=log, start_new_session=True, limit=_LINE_BYTES_MAX,
                )  # fmt: skip
        except OSError as error:
            raise DispatcherError(f"{self._command[0]} can't be run: {error.strerror}") from None
        self._reading = asyncio.create_task(self._read())
        o = self.options
        self._write(
            type="start", url=self._url, prefix=o.prefix, lane=o.lane, consumer=o.consumer,
            prefetch=o.prefetch, concurrency=o.concurrency,
        )  # fmt: skip

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    def end(self, call: Call, outcome: str, reason: str) -> None:
        """Let the handler return (`ack`), fail (`raise`), or give the message up (`reject`)."""
        self.open.pop(call.id, None)
        now = time.monotonic()
        if call.handling.cancelled is None:
            call.handling.end, call.handling.failed = now, outcome != "ack"
        self._times_of(call).ended.append(now)
        self._write(type="end", id=call.id, outcome=outcome, reason=reason)

    def stop(self) -> None:
        """Let it leave, finish what it has, and end."""
        self._write(type="stop")

    async def ended(self) -> int:
        """Its exit code, when it has ended."""
        code = await self._process.wait()
        await self._reading
        return code

    async def kill(self) -> None:
        """kill -9 it and what it started."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self.ended()

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join(text.splitlines()[-_LAST_LINES:])

    def _write(self, **line: Any) -> None:
        stdin = self._process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(json.dumps(line).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for text in self._process.stdout:
            try:
                self._heard(json.loads(text))
            except (ValueError, KeyError, TypeError) as error:
                self.problems.append(
                    f"{self.consumer} wrote {text[:200]!r}, which is no line of the suite: {error!r}"
                )

    def _heard(self, line: dict[str, Any]) -> None:
        match line["type"]:
            case "begin":
                self._began(line)
            case "lost":
                self._lost(line["id"])
            case other:
                raise ValueError(f"unknown type {other!r}")

    def _began(self, line: dict[str, Any]) -> None:
        now = time.monotonic()
        seq, number = line["seq"], line["call"]
        if number == 1:
            handling = HandlingRecord(
                self.life, MessageKey.of(line["body"].encode()), seq, line["group_seq"], line["epoch"],
                line["attempt"], now,
            )  # fmt: skip
            self._latest[seq] = handling
            self.handlings.append(handling)
        else:
            handling = self._latest[seq]
            handling.end, handling.failed = None, False
        call = Call(line["id"], number, handling)
        self._check(call, line["group"])
        self.open[call.id] = call
        self._times_of(call).begun.append(now)
        self._on_call(self, call)

    def _check(self, call: Call, group: str | None) -> None:
        if len(self.open) >= self.options.concurrency:
            self.problems.append(f"{self.consumer} has more than {self.options.concurrency} calls at a time")
        wanted = call.message.group
        told = UNGROUPED if group is None else base64.b64decode(group).decode()
        if told != wanted:
            self.problems.append(f"{self.consumer} takes group {told!r} for that of a message of {wanted!r}")

    def _times_of(self, call: Call) -> CallTimes:
        return self.times.setdefault((call.message, call.handling.attempt), CallTimes())

    def _lost(self, call_id: int) -> None:
        call = self.open.pop(call_id, None)
        if call is None:  # it had just been told how to end
            return
        call.handling.cancelled = time.monotonic()
        self.lost.append(call)
        self._write(type="end", id=call_id, outcome="ack", reason="")
