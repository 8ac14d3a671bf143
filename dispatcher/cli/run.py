"""`dispatcher run`: the service itself."""

from __future__ import annotations

import logging
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from dispatcher.cli import options


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
    read = partial(options.load_settings, file)
    settings = read()
    from dispatcher import logs  # with a wrong configuration the line that says so comes at once
    from dispatcher.service import process, reloading, workers

    as_json = None if log_format is LogFormat.AUTO else log_format is LogFormat.JSON
    configure = partial(
        logs.configure, level=logging.getLevelNamesMapping()[log_level.upper()], as_json=as_json
    )
    configure()
    if settings.workers == 1:
        raise typer.Exit(process.run(settings, read))

    worker = workers.supervise(settings.workers)
    if isinstance(worker, int):
        raise typer.Exit(worker)
    configure(worker=worker.number)
    first = worker.settings(reloading.settings_of_one_more(read, settings))
    raise typer.Exit(process.run(first, lambda: worker.settings(read()), worker))
