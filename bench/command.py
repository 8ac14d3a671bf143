"""How a benchmark that needs servers runs, and how it ends: what those of one `main` each have in common."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import redis
import uvloop

from bench.relay.report import machine
from bench.relay.rounds import Stage
from dispatcher.errors import DispatcherError
from dispatcher.nodes import open_servers

T = TypeVar("T")


class Command:
    """`python -m NAME`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._versions: Mapping[str, Any] = {}

    def run(self, measure: Callable[[Stage], Coroutine[Any, Any, T]]) -> T:
        """Measure on RabbitMQ and Redis, given or brought along.

        Ends the process when that fails (code 1, one line) or is interrupted (130).
        """
        try:
            with ExitStack() as running:
                stage = Stage(running.enter_context(open_servers()))
                self._versions = stage.versions
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    return runner.run(measure(stage))
        except (DispatcherError, redis.RedisError) as error:
            print(f"{self._name}: {error}", file=sys.stderr)
            sys.exit(1)
        except KeyboardInterrupt:
            sys.exit(130)

    def end(self, file: Path | None, measured: Mapping[str, Any], exceeded: Sequence[str]) -> NoReturn:
        """Write what was measured, with the machine's shape, to `file`, and name the bounds that do not hold:
        with any the exit code is 1."""
        if file:
            document = {"machine": machine() | dict(self._versions)} | dict(measured)
            file.write_text(json.dumps(document, indent=2) + "\n")
        for problem in exceeded:
            print(f"{self._name}: {problem}", file=sys.stderr)
        sys.exit(1 if exceeded else 0)
