"""Operations on the waiting messages of one group: `groups purge`, `move`, `reroute`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from dispatcher.cli import options
from dispatcher.cli.command_client import new_command, send
from dispatcher.cli.output import counted, print_result
from dispatcher.cli.rabbitmq import connected
from dispatcher.errors import NoAnswer
from dispatcher.settings.units import format_duration

#: An operation waits up to 60 s for markers where nothing moves, and longer where something does.
OPERATION_TIMEOUT_MS: Final = 120_000
#: A dispatcher that dies may not have answered: then the next one is asked.
_ASK_MS: Final = 5_000
_POLL_S_MIN: Final = 0.02
_POLL_S_MAX: Final = 0.5
#: After a longer wait than this the command prints what it waits for.
_TELL_S: Final = 2.0

First = Annotated[
    int | None, typer.Option("--first", metavar="N", min=1, help="Only the first N messages that wait.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count them.")]
Repeat = Annotated[
    str | None,
    typer.Option(
        "--uuid",
        callback=options.short_string,
        metavar="UUID",
        help="Ask again for the command of that uuid.",
    ),
]
OperationTimeout = Annotated[
    int,
    typer.Option(
        "--timeout",
        parser=options.parse_timeout,
        metavar="DURATION",
        show_default=format_duration(OPERATION_TIMEOUT_MS),
        help="How long to wait until it is done.",
    ),
]


def purge(
    lane: options.LaneName,
    group: options.GroupText,
    first: First = None,
    dry_run: DryRun = False,
    command_uuid: Repeat = None,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: OperationTimeout = OPERATION_TIMEOUT_MS,
) -> None:
    """Remove the waiting messages of a group: no consumer gets them. Messages in flight finish."""
    arguments = {"group": group, "first": first, "dry_run": dry_run}
    result = operate(file, lane, "groups.purge", arguments, command_uuid, timeout_ms)
    _print(result, "purged", as_json=as_json)


def move(
    lane: options.LaneName,
    group: options.GroupText,
    to: Annotated[str, typer.Option("--to", metavar="QUEUE", help="The queue that gets them.")],
    first: First = None,
    dry_run: DryRun = False,
    command_uuid: Repeat = None,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: OperationTimeout = OPERATION_TIMEOUT_MS,
) -> None:
    """Send the waiting messages of a group to another queue, in order. Messages in flight finish."""
    arguments = {"group": group, "to": to, "first": first, "dry_run": dry_run}
    result = operate(file, lane, "groups.move", arguments, command_uuid, timeout_ms)
    _print(result, f"moved to {to}", as_json=as_json)


def reroute(
    lane: options.LaneName,
    group: options.GroupText,
    exchange: Annotated[str, typer.Option("--exchange", metavar="EXCHANGE", help="Where to publish them …")],
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="… and with which routing key.")],
    first: First = None,
    dry_run: DryRun = False,
    command_uuid: Repeat = None,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: OperationTimeout = OPERATION_TIMEOUT_MS,
) -> None:
    """Send the waiting messages of a group to an exchange, in order. Messages in flight finish."""
    arguments = {"group": group, "exchange": exchange, "key": key, "first": first, "dry_run": dry_run}
    result = operate(file, lane, "groups.reroute", arguments, command_uuid, timeout_ms)
    _print(result, f"rerouted to {exchange}", as_json=as_json)


def _print(result: dict[str, Any], done: str, *, as_json: bool) -> None:
    text = (
        f"{counted(result.get('messages'), 'message')} {'' if result.get('applied') else 'would be '}{done}"
    )
    print_result(result, f"{result.get('group')}: {text}{_in_flight(result)}", as_json=as_json)


def operate(
    file: Path, lane: str, name: str, arguments: dict[str, Any], command_uuid: str | None, timeout_ms: int
) -> dict[str, Any]:
    """Send the command, and again until it is done: the answer to a repeated uuid says how far it has come.

    Raises what `send` does, and NoAnswer with its uuid when it is not done in time.
    """
    settings = options.load_settings(file)
    names = options.lane_names(settings, lane)
    command = new_command(name, arguments, command_uuid)
    begun = time.monotonic()
    pause_s, told = _POLL_S_MIN, False
    result: dict[str, Any] | None = None
    with connected(settings.rabbitmq, name) as connection:
        while True:
            left_ms = timeout_ms - int((time.monotonic() - begun) * 1_000)
            if left_ms <= 0:
                if result is not None and not told:
                    print(_waits_for(result), file=sys.stderr)
                raise NoAnswer(
                    f"{name} is not done within {format_duration(timeout_ms)}; it may be still: "
                    f"ask again with --uuid {command.uuid}"
                )
            try:
                result = send(connection, names, command, timeout_ms=min(left_ms, _ASK_MS))
            except NoAnswer:
                continue
            if not result.get("open"):
                return result
            if not told and time.monotonic() - begun > _TELL_S:
                told = True
                print(_waits_for(result), file=sys.stderr)
            connection.sleep(pause_s)
            pause_s = min(pause_s * 2, _POLL_S_MAX)


def _waits_for(result: dict[str, Any]) -> str:
    queues = result.get("waits_for")
    if queues:
        return f"waiting until all that is in {', '.join(queues)} is received"
    return f"{counted(result.get('gone'), 'message')} gone, {result.get('left', 0):,} to go"


def _in_flight(result: dict[str, Any]) -> str:
    in_flight = result.get("in_flight")
    return f"; {counted(in_flight, 'message')} in flight" if in_flight else ""
