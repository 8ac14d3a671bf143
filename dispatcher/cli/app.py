"""The `dispatcher` program: its commands and what their failures look like.

Exit codes: 0 done; 1 refused or failed, with a clear line on stderr; 2 wrong usage.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dispatcher import __version__
from dispatcher.cli import config_commands, consumers, dead, groups
from dispatcher.cli.check import check
from dispatcher.cli.demo import demo
from dispatcher.cli.output import print_error
from dispatcher.cli.rebalance import rebalance
from dispatcher.cli.reload import reload
from dispatcher.cli.run import run
from dispatcher.cli.sim import sim
from dispatcher.cli.status import status
from dispatcher.errors import ConfigurationError, DispatcherError


class _OneLineErrors(TyperGroup):
    """Turns the product's own errors into a line on stderr; any other exception is a bug and shows."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigurationError as error:
            for problem in error.problems:
                print_error(f"dispatcher: {problem}")
        except DispatcherError as error:
            print_error(f"dispatcher: {error}")
        raise typer.Exit(1)


app = typer.Typer(
    cls=_OneLineErrors,
    help="Message groups for RabbitMQ: related messages in order, each group at one consumer.",
    epilog="Exit codes: 0 done; 1 refused or failed, the reason is on stderr; 2 wrong usage.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run)
app.command()(check)
app.command()(status)
app.add_typer(groups.app, name="groups")
app.add_typer(consumers.app, name="consumers")
app.command()(rebalance)
app.command()(reload)
app.add_typer(dead.app, name="dead")
app.command()(demo)
app.command()(sim)
app.add_typer(config_commands.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dispatcher {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """The console script."""
    app(prog_name="dispatcher")
