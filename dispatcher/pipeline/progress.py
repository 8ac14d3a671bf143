"""Spark's progress for the user: a bar on a terminal, one line a stage elsewhere; both on stderr.

A line ends with how long its stage took, and where the others' shares of the time are known, with about how
long they will take.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:  # the demo has these words without Spark
    from pyspark.sql import SparkSession

_LOOKS_PER_S: Final = 4


#: From here on a time is told in minutes.
_MINUTES_FROM_S: Final = 90


def say_stage(name: str, spent_s: float, left_s: float | None = None) -> None:
    """The line of a stage that is over; `left_s`: how long the other ones will take."""
    left = f", about {rough(left_s)} more" if left_s is not None else ""
    print(f"{name}: {spent_s:.1f} s{left}", file=sys.stderr, flush=True)


def rough(seconds: float) -> str:
    """Of an estimate: `20 s`, `3 min`."""
    return f"{max(1, round(seconds))} s" if seconds < _MINUTES_FROM_S else f"{round(seconds / 60)} min"


class StageProgress:
    """Call with a stage's name, around its work. `shares`: by stage, its part of the time that all of them
    usually take, in their order; without them nothing is estimated."""

    def __init__(
        self,
        spark: SparkSession,
        shares: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context, self._clock = spark.sparkContext, clock
        self._shares = dict(shares or {})
        self._spent_s = self._done = 0.0

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._context.setJobDescription(name)
        began_s = self._clock()
        if sys.stderr.isatty():
            with self._bar(name):
                yield
        else:
            yield
        spent_s = self._clock() - began_s
        self._spent_s += spent_s
        self._done += self._shares.pop(name, 0.0)
        say_stage(name, spent_s, self._left_s())

    def _left_s(self) -> float | None:
        """As much longer as the shares of the stages to come are larger."""
        left = sum(self._shares.values())
        return self._spent_s * left / self._done if left and self._done else None

    @contextlib.contextmanager
    def _bar(self, name: str) -> Iterator[None]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[of]}"),
            TimeElapsedColumn(),
        )
        over = threading.Event()
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            left_s = self._left_s()
            left = f" (about {rough(left_s)} from here)" if left_s is not None else ""
            task = bar.add_task(name + left, total=None, of="")
            watcher = threading.Thread(target=self._watch, args=(bar, task, over), daemon=True)
            watcher.start()
            try:
                yield
            finally:
                over.set()
                watcher.join()

    def _watch(self, bar: Progress, task: Any, over: threading.Event) -> None:
        tracker = self._context.statusTracker()
        while not over.wait(1 / _LOOKS_PER_S):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            total, done = sum(s.numTasks for s in known), sum(s.numCompletedTasks for s in known)
            if total:
                bar.update(task, total=total, completed=done, of=f"{done:,} of {total:,} tasks")
