"""What the pipeline says of the demo's own ledger."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dispatcher.demo.patience import wait_while_it_goes_on
from dispatcher.demo.screen import Screen
from dispatcher.errors import ConfigurationError, DispatcherError
from dispatcher.nodes.java import ensure_java
from dispatcher.nodes.process import GuardedProcess
from dispatcher.pipeline.progress import rough

_MODULES: Final = ("pyspark", "pyarrow", "jinja2")
#: Of a stage that is over, perhaps with how long the others will take.
_STAGE: Final = re.compile(r"[^:]+: [\d.]+ s(?:, about (?P<left>\d+) (?P<unit>s|min) more)?")
_WITHOUT: Final = "or leave the pipeline out with --no-pipeline"
#: It has got stuck when it has used less than so much CPU time within so long: an idle JVM uses some.
IDLE_S: Final = 300.0
IDLE_CPU_S: Final = 10
#: After so long without a line of it the demo says that it still works.
SILENT_S: Final = 10.0


class PipelineFailed(DispatcherError):
    """The ledger is complete, and there is no report on it."""


def require_pipeline(screen: Screen) -> None:
    """Raises ConfigurationError, which says what to install, where the pipeline could not run in the end."""
    for name in _MODULES:
        if find_spec(name) is None:
            raise ConfigurationError(
                f"{name} is missing: install the extra with "
                f"`pip install 'rabbitmq-group-dispatcher[pipeline]'`, {_WITHOUT}"
            )
    try:
        ensure_java(screen.say)
    except ConfigurationError as problem:
        raise ConfigurationError(f"{problem}, {_WITHOUT}") from None


def run_pipeline(
    ledger: Path,
    report: Path,
    screen: Screen,
    *,
    idle_s: float = IDLE_S,
    silent_s: float = SILENT_S,
    program: Sequence[str] = (sys.executable, "-m", "dispatcher"),
) -> None:
    """`dispatcher pipeline run`, in a process of its own, of which nothing outlives this one. What it says of
    its stages is shown, and that it works when it has said nothing for `silent_s`.

    Raises PipelineFailed when it fails, or does nothing for `idle_s`; order that was violated is no failure
    of it.
    """
    screen.say("The pipeline reads what the dispatcher has recorded (with Spark: a minute, or more).")
    command = ["pipeline", "run", "--input", str(ledger), "--output", str(report)]
    process = GuardedProcess("pipeline")
    try:
        process.start([*program, *command], dict(os.environ))
        news = _News(process, screen, silent_s)

        def is_over() -> bool:
            news.show()
            return not process.is_alive()

        if not wait_while_it_goes_on(is_over, lambda: int(process.cpu_s() / IDLE_CPU_S), idle_s):
            raise PipelineFailed(
                f"the pipeline has done nothing for {idle_s:g} s. The ledger is kept; try it alone: "
                f"dispatcher {shlex.join(command)}"
            )
        news.show()
        if not (report / "summary.json").is_file():
            last = (process.log_tail().splitlines() or ["it wrote nothing"])[-1]
            raise PipelineFailed(f"the pipeline failed: {last} (the ledger is kept: {ledger})")
    finally:
        process.close()


class _News:
    """Shows the stages that the pipeline has finished, and now and then that it works, and for about how much
    longer."""

    def __init__(self, process: GuardedProcess, screen: Screen, silent_s: float) -> None:
        self._process = process
        self._screen = screen
        self._silent_s = silent_s
        self._shown = 0
        self._began_at = self._said_at = time.monotonic()
        self._over_at = 0.0  # as the latest stage has estimated

    def show(self) -> None:
        stages = self._stages()
        now = time.monotonic()
        for line in stages[self._shown :]:
            self._screen.say(f"  {line[0]}")
            self._said_at = now
            self._over_at = now + float(line["left"] or 0) * (60 if line["unit"] == "min" else 1)
        self._shown = len(stages)
        if now - self._said_at >= self._silent_s:
            left = f", about {rough(self._over_at - now)} more" if self._over_at > now else ""
            self._screen.say(f"  it has worked for {now - self._began_at:.0f} s{left}")
            self._said_at = now

    def _stages(self) -> list[re.Match[str]]:
        """The lines of stages that are over."""
        texts = [log.read_text(errors="replace") for log in self._process.logs()]
        found = [_STAGE.fullmatch(line) for text in texts for line in text.splitlines()]
        return [each for each in found if each is not None]


def show_verdict(report: Path, screen: Screen) -> bool:
    """Print the verdict of a finished report, and write its page; whether order was not violated."""
    from dispatcher.pipeline.page import open_report, write_page
    from dispatcher.pipeline.report_folder import PAGE
    from dispatcher.pipeline.summary import as_text

    with open_report(report) as source:
        write_page(source, report / PAGE)
        # The names of groups are in the page.
        screen.say(as_text(source.summary | {"unknown": []}))
    if source.summary["verdict"] == "unknown":
        screen.say(
            "Unknown is not violated: the dispatcher was killed, and its last decisions were not recorded. "
            "Their effects are in the consumers' own records, which were checked above."
        )
    screen.say(f"The page: {report / PAGE}")
    return bool(source.summary["verdict"] != "violated")
