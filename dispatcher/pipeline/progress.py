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
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:  # the demo has these words without Spark
    from pyspark import SparkContext
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
    """Call with a stage's name, around its work; several may last at the same time, each in a thread of its
    own. `shares`: by stage, its part of the work that all of them usually are; without them nothing is
    estimated."""

    def __init__(
        self,
        spark: SparkSession,
        shares: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context, self._clock = spark.sparkContext, clock
        self._shares = dict(shares or {})
        self._done, self._began_s = 0.0, clock()
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._bar: _Bar | None = None

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._context.setJobDescription(name)
        began_s = self._clock()
        with self._lock:
            self._change(began_s, [*self._names, name])
        try:
            yield
        except BaseException:
            with self._lock:
                self._change(began_s, [each for each in self._names if each != name])
            raise
        ended_s = self._clock()
        with self._lock:
            self._done += self._shares.pop(name, 0.0)
            self._change(ended_s, [each for each in self._names if each != name])
            say_stage(name, ended_s - began_s, self._left_s(ended_s))

    def _left_s(self, now_s: float) -> float | None:
        """As much longer as the shares of the stages to come are larger."""
        left = sum(self._shares.values())
        return (now_s - self._began_s) * left / self._done if left and self._done else None

    def _change(self, now_s: float, names: list[str]) -> None:
        """A bar for these stages, in place of the one before."""
        self._names = names
        if self._bar is not None:
            self._bar.end()
            self._bar = None
        if names and sys.stderr.isatty():
            left_s = self._left_s(now_s)
            left = f" (about {rough(left_s)} from here)" if left_s is not None else ""
            self._bar = _Bar(self._context, ", ".join(names) + left)


class _Bar:
    """How many of the tasks of Spark's present stages are done, until `end`."""

    def __init__(self, context: SparkContext, text: str) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[of]}"),
            TimeElapsedColumn(),
        )
        self._context, self._over = context, threading.Event()
        self._shown = Progress(*columns, console=Console(stderr=True), transient=True)
        self._shown.start()
        self._task = self._shown.add_task(text, total=None, of="")
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def end(self) -> None:
        """Its line is cleared then."""
        self._over.set()
        self._watcher.join()
        self._shown.stop()

    def _watch(self) -> None:
        tracker = self._context.statusTracker()
        while not self._over.wait(1 / _LOOKS_PER_S):
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            total, done = sum(s.numTasks for s in known), sum(s.numCompletedTasks for s in known)
            if total:
                self._shown.update(self._task, total=total, completed=done, of=f"{done:,} of {total:,} tasks")
