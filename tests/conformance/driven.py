"""A conformance program that a test drives by hand, with a LaneStub in the place of dispatchers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.client.lane_stub import LANE
from tests.waiting import TIMEOUT_S, eventually


class Driven:
    """One process. `async with Driven(command, url) as program`; what has not ended by then is killed."""

    def __init__(self, command: list[str], url: str, *, concurrency: int = 4) -> None:
        self.begun: list[dict[str, Any]] = []
        self.lost: list[int] = []
        self.answers: dict[str, str] = {}  # body → outcome; of others the test says `end`
        self.complaints = b""
        self._command = command
        self._start = {
            "type": "start", "url": url, "prefix": "dispatch", "lane": LANE, "consumer": "c1", "prefetch": 20,
            "concurrency": concurrency,
        }  # fmt: skip

    async def __aenter__(self) -> Driven:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=pipe
        )
        self._reading = asyncio.gather(self._read(), self._read_complaints())
        self._write(**self._start)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self.ended()

    async def called(self, body: str, times: int = 1) -> dict[str, Any]:
        """The line of the latest of so many calls with this body."""

        def calls() -> list[dict[str, Any]]:
            return [line for line in self.begun if line["body"] == body]

        await eventually(lambda: len(calls()) >= times, what=f"call {times} of {body}: {self.complaints!r}")
        return calls()[times - 1]

    def end(self, call: dict[str, Any], outcome: str = "ack", reason: str = "") -> None:
        self._write(type="end", id=call["id"], outcome=outcome, reason=reason)

    def stop(self) -> None:
        self._write(type="stop")

    async def ended(self, within_s: float = TIMEOUT_S) -> int:
        """Its exit code."""
        await eventually(
            lambda: self._process.returncode is not None, within_s, what=f"its end: {self.complaints!r}"
        )
        code = await self._process.wait()
        await self._reading
        return code

    def _write(self, **line: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for text in self._process.stdout:
            line = json.loads(text)
            if line["type"] == "lost":
                self.lost.append(line["id"])
                continue
            self.begun.append(line)
            outcome = self.answers.get(line["body"], self.answers.get("*"))
            if outcome is not None:
                self.end(line, outcome)

    async def _read_complaints(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.complaints += line
