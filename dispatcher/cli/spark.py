"""What commands of the pipeline need."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.errors import ConfigurationError

Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Spark's master; else what spark-submit says, else local[*]."),
]


def parse_folder(value: str | Path) -> Path:
    """A directory, for options. Raises typer.BadParameter for a URL: results are renamed and locked, which
    object stores can't do."""
    text = str(value)
    if "://" in text:
        raise typer.BadParameter(
            f"{text} is a URL, and this must be a directory that the driver and all executors see"
        )
    return Path(text)


def require_spark() -> None:
    """Raises ConfigurationError where the extra is not installed."""
    require_modules("pyspark", "pyarrow")


def require_modules(*names: str) -> None:
    """Of the extra. Raises ConfigurationError where it is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigurationError(
                f"{name} is missing: install the extra with "
                "`pip install 'rabbitmq-group-dispatcher[pipeline]'`"
            )
