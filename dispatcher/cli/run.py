"""`dispatcher run`: the service itself."""

from __future__ import annotations

import logging
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dispatcher.cli import options

if TYPE_CHECKING:
    from dispatcher.service.workers import Worker
    from dispatcher.settings import Settings


class LogLevel(StrEnum):
    """The least important lines that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """What a line of the log looks like."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


def run(
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    log_level: Annotated[
        LogLevel, typer.Option("--log-level", help="Do not log less important events.")
    ] = LogLevel.INFO,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="auto: text on a terminal, JSON lines elsewhere.")
    ] = LogFormat.AUTO,
) -> None:
    """Run every lane of the configuration until SIGTERM or SIGINT.

    Several may run with the same configuration: per lane one is active, the others stand by. `workers` in the
    configuration starts several at once.
    """
    settings = options.load_settings(file)
    from dispatcher import logs  # with a wrong configuration the line that says so comes at once
    from dispatcher.service import process, workers

    as_json = None if log_format is LogFormat.AUTO else log_format is LogFormat.JSON
    configure = partial(
        logs.configure, level=logging.getLevelNamesMapping()[log_level.upper()], as_json=as_json
    )
    configure()
    if settings.workers == 1:
        raise typer.Exit(process.run(settings, lambda: options.load_settings(file)))

    worker = workers.supervise(settings.workers)
    if isinstance(worker, int):
        raise typer.Exit(worker)
    configure(worker=worker.number)
    read = partial(_read, file, worker)
    raise typer.Exit(process.run(read(), read, worker))


def _read(file: Path, worker: Worker) -> Settings:
    """A worker that is started anew reads the file as it is then."""
    return worker.settings(options.load_settings(file))
