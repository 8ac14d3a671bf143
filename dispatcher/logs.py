"""Logging of the service: structlog, for people on a terminal and as JSON lines elsewhere.

Message bodies are never logged: no module hands them to a logger, and tracebacks come without local
variables. Passwords in URLs are removed from every line.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from functools import partial
from typing import Any, Final, TextIO

import structlog
from structlog.typing import Processor

from dispatcher.settings.urls import redact
from dispatcher.wire import json_text
from dispatcher.wire.plain_text import printable, printable_lines

#: Their messages below warnings tell of their own workings, not of the service's.
_CHATTY: Final = ("aiohttp.access", "asyncio", "pamqp", "pika")
#: Text of several lines, made by us.
_TRACEBACKS: Final = ("exception", "stack")


def configure(
    stream: TextIO = sys.stderr, *, level: int = logging.INFO, as_json: bool | None = None,
    worker: int | None = None,
) -> None:  # fmt: skip
    """Send all logging, the libraries' too, to this stream; once, before anything is logged.

    `as_json`: lines of JSON, or text for people; None: text on a terminal, JSON elsewhere. `worker`: the
    number that every line has.
    """
    on_terminal = stream.isatty()
    people = on_terminal if as_json is None else not as_json
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False)
        if people and on_terminal
        else structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if worker is not None:
        shared.insert(0, partial(_named, worker))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_ending(people, on_terminal),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _named(
    worker: int, _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    event["worker"] = worker
    return event


def _ending(people: bool, on_terminal: bool) -> list[Processor]:
    if people:
        plain = structlog.dev.ConsoleRenderer(
            colors=on_terminal, exception_formatter=structlog.dev.plain_traceback
        )
        return [structlog.processors.format_exc_info, _without_passwords, _on_one_line, plain]
    return [
        structlog.processors.ExceptionRenderer(
            structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        ),
        _without_passwords,
        structlog.processors.JSONRenderer(json_text.dumps, default=_as_text),
    ]


def _without_passwords(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    return {key: _cleaned(value) for key, value in event.items()}


def _on_one_line(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """What others wrote (a reason, a name) neither looks like a line of ours nor steers the terminal."""
    return {
        key: (printable_lines if key in _TRACEBACKS else printable)(value)
        if isinstance(value, str)
        else value
        for key, value in event.items()
    }


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return redact(value)
        case dict():
            return {key: _cleaned(item) for key, item in value.items()}
        case list() | tuple():
            return [_cleaned(item) for item in value]
        case BaseException():
            return redact(f"{type(value).__name__}: {value}")
        case _:
            return value


def _as_text(value: Any) -> str:
    return redact(str(value))
