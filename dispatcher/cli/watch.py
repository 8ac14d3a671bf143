"""`--watch`: a result shown again and again."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Callable
from typing import Annotated, Final

import typer
from rich.console import Console

from dispatcher.cli.output import console, print_error, printed_to
from dispatcher.errors import BrokerUnavailable, NoAnswer

_EVERY_S: Final = 2.0

Watch = Annotated[bool, typer.Option("--watch", help="Show it again every 2 s, until Ctrl-C.")]


def watch(show: Callable[[Console], None]) -> None:
    """Call `show` until SIGINT. On a terminal each time replaces what was there. A dispatcher that does not
    answer now, as while another one takes over, does not end it."""
    out = console()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            complaints = io.StringIO()  # kept too, or clearing the screen would take them away
            with out.capture() as shown, printed_to(out), contextlib.redirect_stderr(complaints):
                try:
                    show(out)
                except (BrokerUnavailable, NoAnswer) as problem:
                    print_error(f"dispatcher: {problem}")
            if out.is_terminal:
                out.clear()
            out.file.write(shown.get())
            out.file.flush()
            sys.stderr.write(complaints.getvalue())
            sys.stderr.flush()
            time.sleep(_EVERY_S)


def refuse_json(*, watches: bool, as_json: bool) -> None:
    """Programs ask again themselves. Raises typer.BadParameter."""
    if watches and as_json:
        raise typer.BadParameter("does not go with --json", param_hint="--watch")
