"""How far long work has come: a bar on a terminal, plain lines elsewhere, both on stderr."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

#: Where there is no terminal for a bar, one line for this many.
LINE_EVERY: Final = 10_000


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Call the returned function once for each item done."""
    if not sys.stderr.isatty():
        yield _lines(what, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _lines(what: str, total: int) -> Callable[[], None]:
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if done % LINE_EVERY == 0:
            print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    return advance
