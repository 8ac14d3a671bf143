"""What the service logs in a run becomes part of the run's history; a crash that it survived is a failure."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

import structlog

from dispatcher.client.engine import LOG as CLIENT_LOG
from dispatcher.sim.history import RunHistory
from dispatcher.sim.loop import ProcessLoop


class _Sink:
    def __init__(self, history: RunHistory) -> None:
        self._history = history

    def __call__(self, _: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        process: object = asyncio._get_running_loop()
        if isinstance(process, ProcessLoop) and process.dead:
            raise structlog.DropEvent  # nobody hears its last words
        name = process.name if isinstance(process, ProcessLoop) else "log"
        what = event.pop("event", "")
        self._history.note(name, f"logs {what}", event)
        self._history.met["logs", what] += 1
        failure = sys.exc_info()[1]
        if level in ("error", "exception", "critical") and failure is not None:
            self._history.scheduler.failures.append((name, failure))
        raise structlog.DropEvent


@contextlib.contextmanager
def captured(history: RunHistory) -> Iterator[None]:
    """Logs go to the history while this is open."""
    before, level = structlog.get_config(), CLIENT_LOG.level
    structlog.configure(
        processors=[_Sink(history)], wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING)
    )
    CLIENT_LOG.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        structlog.configure(**before)
        CLIENT_LOG.setLevel(level)
