"""The output while the demo runs: progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

#: Between two plain lines.
LINE_S: Final = 2.0


class Screen:
    """Shows counts on their way to a total, and says what happens."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, tuple[int, float]] = {}  # count and time of the last plain line
        if console.is_terminal:
            name = TextColumn("{task.description:>24}")
            self._progress = Progress(
                name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
            )

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, name: str, count: int, total: int) -> None:
        """`count` of `total` so far, under this name; from 0 to `total` at any pace."""
        if self._progress is not None:
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=total)
            self._progress.update(self._tasks[name], completed=count)
            return
        said, said_at = self._said.get(name, (-1, 0.0))
        now = time.monotonic()
        if count != said and (count == total or now - said_at >= LINE_S):
            self._said[name] = count, now
            self.say(f"{name}: {count:,} of {total:,}")

    def show_detail(self, name: str, count: int, total: int) -> None:
        """`show`, on a terminal only."""
        if self._progress is not None:
            self.show(name, count, total)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
