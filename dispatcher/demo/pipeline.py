"""What the pipeline says of the demo's own ledger."""

from __future__ import annotations

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dispatcher.demo.screen import Screen
from dispatcher.errors import ConfigurationError, DispatcherError
from dispatcher.nodes.java import ensure_java
from dispatcher.nodes.process import GuardedProcess

_MODULES: Final = ("pyspark", "pyarrow", "jinja2")
_WITHOUT: Final = "or leave the pipeline out with --no-pipeline"
#: It should be over within a minute.
RUN_S: Final = 300.0
POLL_S: Final = 0.1


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


def run_pipeline(ledger: Path, report: Path, screen: Screen) -> None:
    """`dispatcher pipeline run`, in a process of its own, of which nothing outlives this one.

    Raises DispatcherError when it fails; order that was violated is no failure of it.
    """
    screen.say("The pipeline reads what the dispatcher has recorded (with Spark, up to a minute).")
    command = [sys.executable, "-m", "dispatcher", "pipeline", "run", "--input", str(ledger)]
    process = GuardedProcess("pipeline")
    try:
        process.start([*command, "--output", str(report)], dict(os.environ))
        deadline = time.monotonic() + RUN_S
        while process.is_alive():
            if time.monotonic() > deadline:
                raise DispatcherError(f"the pipeline was not ready after {RUN_S:.0f} s")
            time.sleep(POLL_S)
        if not (report / "summary.json").is_file():
            last = (process.log_tail().splitlines() or ["it wrote nothing"])[-1]
            raise DispatcherError(f"the pipeline failed: {last}")
    finally:
        process.close()


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
