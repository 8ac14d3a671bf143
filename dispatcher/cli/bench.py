"""`dispatcher bench`: the benchmarks of a checkout."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from dispatcher.errors import ConfigurationError

#: What follows a benchmark's name is its own, options too.
CONTEXT: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_CHECKOUT: Final = Path(__file__).parents[2]


def benchmarks(checkout: Path) -> dict[str, str]:
    """Names, in their order, and what each measures. Raises ConfigurationError where there are none: they are
    no part of an installation."""
    found = dict(sorted(_programs(checkout / "bench")))
    if not found:
        raise ConfigurationError(
            [f"there are no benchmarks in {checkout}: run this in a checkout, as scripts/test makes it"]
        )
    return found


def _programs(folder: Path) -> Iterator[tuple[str, str]]:
    """A benchmark is a module that says how it is called; others are parts of one."""
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__main__")
        said = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0].split())
        measures, calls, _ = said.partition(f": `python -m bench.{name}`")
        if calls:
            yield name, measures


def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which one; without it, a list.", show_default=False)
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENT...", help="Its own; --help shows them.", show_default=False),
    ] = None,
) -> None:
    """Measure: against RabbitMQ's Shovel, plain relays and plain Spark SQL (docs/benchmarks.md)."""
    known = benchmarks(_CHECKOUT)
    if name is None:
        for each, measures in known.items():
            print(f"{each:16} {measures}")
        return
    if name not in known:
        raise typer.BadParameter(
            f"unknown benchmark {name!r}; there are {', '.join(known)}", param_hint="NAME"
        )
    path = os.pathsep.join(filter(None, (str(_CHECKOUT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", f"bench.{name}", *(arguments or ())]
    os.execve(sys.executable, command, {**os.environ, "PYTHONPATH": path})
