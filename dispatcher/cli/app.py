"""The `dispatcher` program: its commands and what their failures look like.

Exit codes: 0 done; 1 refused or failed, with a clear line on stderr; 2 wrong usage.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from dispatcher import __version__, form
from dispatcher.errors import ConfigurationError, DispatcherError

#: In the order of --help: the module that has the function of that name, or an `app` of commands; and the
#: first sentence of its help, so that a list of all commands imports none of them.
_MODULES: Final = {
    "run": ("run", "Run every lane of the configuration until SIGTERM or SIGINT."),
    "check": (
        "check",
        "Check configuration, connections, rights, inbound queues and limits; changes nothing anywhere.",
    ),
    "status": (
        "status",
        "Show what lanes do: inbound queues and their shares, consumers, groups, messages that wait and that "
        "are in flight.",
    ),
    "top": ("top", "Show lanes, groups and consumers live in a terminal, and give commands by keys."),
    "groups": (
        "groups",
        "Look at the message groups of a lane; pause, pin, close, purge and move them.",
    ),
    "consumers": ("consumers", "Look at the consumers of a lane; drain and end them."),
    "rebalance": (
        "rebalance",
        "Move groups: with no option as few as make the consumers' numbers of groups even.",
    ),
    "reload": (
        "reload",
        "Let dispatchers read their configuration file again: all of it applies, or nothing does.",
    ),
    "dead": ("dead", "Look at what a lane has given up, and decide about it."),
    "replay": (
        "replay",
        "Send the messages that the lane's history still has once more, in their order.",
    ),
    "observe": (
        "observe",
        "Look at an existing flow: what competing consumers do to its order, and what groups would cost.",
    ),
    "lane": ("lane", "Take a lane out of service, or change its number of shards."),
    "demo": (
        "demo",
        "Replay a repository's history through a lane, kill consumers and dispatcher, and verify the "
        "outcome.",
    ),
    "pipeline": ("pipeline", "What a ledger says, computed with Spark (docs/pipeline.md)."),
    "conformance": (
        "conformance",
        "Try whether a consumer program in any language keeps the protocol (docs/protocol.md).",
    ),
    "sim": (
        "sim",
        "Try what may go wrong: the real dispatcher and SDK on virtual time, against modelled servers.",
    ),
    "bench": (
        "bench",
        "Measure: against RabbitMQ's Shovel, plain relays and plain Spark SQL (docs/benchmarks.md).",
    ),
    "config": ("config_commands", "About the configuration file."),
}


#: Other names that people try; --help has those above.
_OTHER_NAMES: Final = {"watch": "observe"}


class _Commands(Mapping[str, Any]):
    """Imports a command when it is looked up: what the others need would take most of its time. This is the
    only place where commands are imported late for that."""

    def __getitem__(self, name: str) -> Any:
        module = import_module(f"dispatcher.cli.{_MODULES[name][0]}")
        around = typer.Typer(add_completion=False)
        if hasattr(module, "app"):
            around.add_typer(module.app, name=name)
        else:
            around.callback()(lambda: None)  # else a single command is no group
            around.command(name, context_settings=getattr(module, "CONTEXT", None))(getattr(module, name))
        return typer.main.get_group(around).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


class _Program(TyperGroup):
    """Turns the product's own errors into a line on stderr; any other exception is a bug and shows."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, _OTHER_NAMES.get(cmd_name, cmd_name))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with self._names_only():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with self._names_only():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _names_only(self) -> Iterator[None]:
        """Within the body the commands have their names and help, and nothing is imported for them."""
        commands = self.commands
        self.commands = {name: TyperCommand(name, help=text) for name, (_, text) in _MODULES.items()}
        try:
            yield
        finally:
            self.commands = commands

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigurationError as error:
            problems = error.problems
        except DispatcherError as error:
            problems = [str(error)]
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # words of Pydantic, for its users
            raise
        from dispatcher.cli.output import print_error  # brings Rich

        for problem in problems:
            print_error(f"dispatcher: {problem}")
        raise typer.Exit(1)


app = typer.Typer(
    cls=_Program,
    help="Message groups for RabbitMQ: related messages in order, each group at one consumer.",
    epilog="Exit codes: 0 done; 1 refused or failed, the reason is on stderr; 2 wrong usage.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dispatcher {__version__} ({form()})")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def _mend_streams() -> None:
    """Escape characters that the terminal doesn't know; a stream that was not opened here accepts all of
    them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        else:
            stream.reconfigure(errors="backslashreplace")


def _leave_no_core_dump() -> None:
    """Commands, and all processes that they start, have passwords in memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """The console script."""
    _leave_no_core_dump()
    _mend_streams()
    try:
        app(prog_name="dispatcher")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.exit(f"dispatcher: the output can't be written: {error.strerror}")
