"""Fixtures of the end-to-end tests: a dispatcher in the test's event loop, or in a process."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from dispatcher.service.lane_runner import LaneRunner
from dispatcher.service.session import Session
from tests.conftest import Vhost
from tests.service.harness import Bench, DispatcherProcess, bench_of, document


class AtOnce(Session):
    """Nobody kills this RabbitMQ: a new parking queue need not be on disk before it is used."""

    defined_s = 0.0


class Runner(LaneRunner):
    session_type = AtOnce


Starter = Callable[..., DispatcherProcess]


@pytest.fixture(autouse=True, scope="session")
def _plain_log() -> None:
    """What a failed test shows of the dispatcher's log: no colours, no local variables."""
    stdout = sys.__stdout__  # `sys.stdout` may be a program's meanwhile, which runs in this process
    assert stdout is not None
    stdout.reconfigure(errors="backslashreplace")  # as the program does
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False),
            structlog.processors.format_exc_info,
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(stdout),
    )


@pytest.fixture
async def bench(vhost: Vhost) -> AsyncIterator[Bench]:
    """A vhost with everything that a test of the running dispatcher needs."""
    async with bench_of(vhost) as made:
        made.runner_type = Runner
        yield made


@pytest.fixture
def dispatcher_process(vhost: Vhost, tmp_path: Path) -> Iterator[Starter]:
    """`start(name, redis_url=…, **lanes)` runs a dispatcher in a process of its own."""
    started: list[DispatcherProcess] = []

    def start(
        name: str = "one", *, program: str = "dispatcher", changes: dict[str, Any] | None = None, **lanes: Any
    ) -> DispatcherProcess:
        settings = document(vhost.amqp_url, vhost.redis_url, vhost.redis_prefix, lanes)
        process = DispatcherProcess(tmp_path, name, settings | (changes or {}), program)
        started.append(process)
        process.start()
        return process

    yield start
    for process in started:
        process.close()
