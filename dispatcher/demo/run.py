"""`dispatcher demo`: chooses the input, brings the servers, runs, and reports."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from rich.console import Console

import dispatcher
from dispatcher.demo import git_history, order_book
from dispatcher.demo.git_history import NoHistory
from dispatcher.demo.pipeline import PipelineFailed, require_pipeline, run_pipeline, show_verdict
from dispatcher.demo.replay import ReplayRun
from dispatcher.demo.report import print_report
from dispatcher.demo.screen import Screen
from dispatcher.demo.workload import Workload
from dispatcher.errors import ConfigurationError
from dispatcher.nodes import open_servers

#: Enough for some seconds between the incidents; a shorter history is repeated.
MESSAGES_MIN: Final = 20_000
INTERRUPTED: Final = 130


def run(
    *,
    git: Path | None = None,
    orders: int | None = None,
    messages_min: int = MESSAGES_MIN,
    output: Path | None = None,
    pipeline: bool = True,
    console: Console | None = None,
) -> int:
    """Run the demo; returns the exit code, 0 when everything held.

    Replays the history of the repository `git`, or `orders` generated events of an order book; with
    neither, the history of the repository that the program lies in, else generated events. A history of
    fewer changes than `messages_min` is repeated. With `pipeline` the dispatcher keeps a ledger in the
    directory `output` (None: a new one among temporary files), and what the pipeline makes of it is put
    beside it; violated order is a failure there, too. Raises DispatcherError when something can't be started,
    or when `git` has no history.
    """
    screen = Screen(console or Console())
    try:
        with _folder(output) if pipeline else nullcontext() as folder:
            if pipeline:
                require_pipeline(screen)
            workload = choose_workload(screen, git, orders, messages_min)
            screen.say(f"Input: {workload.title}.")
            ledger = folder / "ledger" if folder is not None else None
            with open_servers(screen.say) as servers, ReplayRun(workload, servers, screen, ledger) as replay:
                with screen:
                    result = replay.run()
                print_report(screen.console, workload, result)
            holds = result.holds
            if folder is not None and ledger is not None:
                run_pipeline(ledger, folder / "report", screen)
                holds = show_verdict(folder / "report", screen) and holds
    except KeyboardInterrupt:
        print("dispatcher: interrupted; everything that was started is ended", file=sys.stderr)
        return INTERRUPTED
    return 0 if holds else 1


@contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    """Where the ledger and the report go; a temporary one stays if the demo comes to its end, or if only the
    pipeline failed. Raises ConfigurationError."""
    if output is None:
        made = Path(tempfile.mkdtemp(prefix="dispatcher-demo-"))
        try:
            yield made
        except PipelineFailed:
            raise
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        if any(output.iterdir()):
            raise ConfigurationError(f"{output}: is not empty: name a directory that the demo may fill")
    except OSError as problem:
        raise ConfigurationError(f"{output}: can't be written to: {problem.strerror}") from None
    yield output.absolute()


def choose_workload(screen: Screen, git: Path | None, orders: int | None, messages_min: int) -> Workload:
    """What to replay. Raises NoHistory for a `git` that has none."""
    if orders is not None:
        return order_book.read_workload(orders)
    if git is not None:
        return git_history.read_workload(git, messages_min)
    try:
        return git_history.read_workload(Path(dispatcher.__file__).parents[1], messages_min)
    except NoHistory as error:
        screen.say(f"No git history to replay: {error}. Generated orders instead.")
        return order_book.read_workload(messages_min)
