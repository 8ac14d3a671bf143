"""Spark's progress for the user: a bar on a terminal, one line a stage elsewhere; both on stderr."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_LOOKS_PER_S: Final = 4


class StageProgress:
    """Call with a stage's name, around its work."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._context.setJobDescription(name)
        began_s = time.monotonic()
        if sys.stderr.isatty():
            with self._bar(name):
                yield
        else:
            yield
        print(f"{name}: {time.monotonic() - began_s:.1f} s", file=sys.stderr, flush=True)

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
            task = bar.add_task(name, total=None, of="")
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
