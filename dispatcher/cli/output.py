"""How results are printed: tables for people, JSON for programs, one line for what went wrong."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dispatcher.settings.urls import redact
from dispatcher.wire import json_text
from dispatcher.wire.plain_text import printable, printable_lines

#: Where the output is not a terminal, no cell is cut or folded.
_WIDTH_IN_FILES: Final = 4_096
WELL, LOOK, ACT = "green", "yellow", "red"
#: How words of states look, at the beginning of a cell and behind a comma: as it should be, worth a look,
#: something that doesn't go on by itself.
_STATES: Final = {
    WELL: r"live\b",
    LOOK: r"(?:frozen|leaving|expected|marked|draining|recovering"
    r"|drained|alone|id twice|paused|pinned|in transition)\b",
    ACT: r"(?:lost|taken|refusing|stopped)\b",
}


_COLLECTED: Final[ContextVar[list[Any] | None]] = ContextVar("collected", default=None)
_CONSOLE: Final[ContextVar[Console | None]] = ContextVar("console", default=None)


class _Console(Console):
    """Escapes characters that are not printable, so that no text of others can control the terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        printed = (printable_lines(each) if isinstance(each, str) else each for each in objects)
        super().print(*printed, **options)


def console() -> Console:
    """Standard output; colours and the window's width only where it is a terminal."""
    if (given := _CONSOLE.get()) is not None:
        return given
    return _Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _WIDTH_IN_FILES)


@contextlib.contextmanager
def printed_to(out: Console) -> Iterator[None]:
    """`console` is this one."""
    token = _CONSOLE.set(out)
    try:
        yield
    finally:
        _CONSOLE.reset(token)


@contextlib.contextmanager
def collected_json() -> Iterator[list[Any]]:
    """What would be printed as JSON is in this list instead."""
    collected: list[Any] = []
    token = _COLLECTED.set(collected)
    try:
        yield collected
    finally:
        _COLLECTED.reset(token)


def print_json(value: Any) -> None:
    if (collected := _COLLECTED.get()) is not None:
        collected.append(value)
        return
    knows_all = (sys.stdout.encoding or "").lower().startswith("utf")
    print(json_text.dumps(value, indent=2) if knows_all else json.dumps(value, indent=2))


def print_result(result: dict[str, Any], text: str, *, as_json: bool) -> None:
    """Say what a change did: `result` for programs, else `text`."""
    if as_json:
        print_json(result)
    else:
        console().print(text)


def print_error(text: str) -> None:
    """Say on stderr what went wrong; passwords are taken out."""
    print(printable_lines(redact(text)), file=sys.stderr)


def table(
    columns: Iterable[str], rows: Iterable[Iterable[Any]], *, numbers: Iterable[str] = (),
    left_out: Iterable[str] = (), untitled: bool = False,
) -> Table:  # fmt: skip
    """A table of plain values; the columns in `numbers` are set to the right, those in `left_out` are not
    there. No word of a column's title is split, however narrow the window is. `untitled`: rows only."""
    made = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, show_header=not untitled
    )
    right, hidden, titles = set(numbers), set(left_out), list(columns)
    for title in titles:
        if title not in hidden:
            made.add_column(
                title, justify="right" if title in right else "left", overflow="fold",
                min_width=max(map(len, title.split()), default=0),
            )  # fmt: skip
    for row in rows:
        cells = zip(titles, row, strict=True)
        made.add_row(*(_cell(value) for title, value in cells if title not in hidden))
    return made


def _cell(value: Any) -> Text:
    return value if isinstance(value, Text) else Text(shown(value))


def in_colour(text: str, colour: str) -> Text:
    """Of one colour where the output is a terminal; printable."""
    return Text(printable_lines(text), style=colour)


def states(text: str | None) -> Text:
    """A cell of a table that names states, with their colours."""
    cell = Text(shown(text))
    for colour, words in _STATES.items():
        cell.highlight_regex(rf"(?:^|(?<=, )){words}", colour)
    return cell


def shown(value: Any) -> str:
    """One cell, printable: `-` for nothing, thousands apart, yes and no."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.3f}"
        case _:
            return printable(str(value))


def counted(count: Any, noun: str) -> str:
    """`1 group`, `2 groups`"""
    return f"{shown(count)} {noun}" if count == 1 else f"{shown(count)} {noun}s"


def span(duration_ms: Any) -> str | None:
    """A time span as people say it, rounded: `340 ms`, `4.2 s`, `3 m 20 s`, `2 d 4 h`."""
    if not isinstance(duration_ms, int | float):
        return None
    if duration_ms < 1_000:
        return f"{duration_ms:.0f} ms"
    seconds = duration_ms / 1_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    place = next(index for index, (_, length) in enumerate(units) if seconds >= length)
    (unit, length), (lower_unit, lower) = units[place], units[place + 1]
    whole, rest = divmod(int(seconds), length)
    return f"{whole} {unit} {rest // lower} {lower_unit}"
