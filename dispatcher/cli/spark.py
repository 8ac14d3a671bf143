"""What commands of the pipeline need."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from dispatcher.errors import ConfigurationError

Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Spark's master; else what spark-submit says, else local[*]."),
]


def require_spark() -> None:
    """Raises ConfigurationError where the extra is not installed."""
    require_modules("pyspark", "pyarrow")


def require_modules(*names: str) -> None:
    """Of the extra. Raises ConfigurationError where it is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigurationError(
                f"{name} is missing: install the extra with `pip install 'dispatcher[pipeline]'`"
            )
