"""`dispatcher rebalance`: move groups to other consumers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dispatcher.cli import options, verbs
from dispatcher.cli.command_client import ask_lane
from dispatcher.cli.output import console, print_json, table
from dispatcher.cli.rebalance_plan import apply_plan
from dispatcher.cli.rebalance_plan import show as show_planned
from dispatcher.cli.shards import over_shards
from dispatcher.settings import PauseName

_COLUMNS = ("group", "from", "to", "waits for")


@over_shards
def rebalance(
    lane: options.LaneName,
    reset: Annotated[
        bool,
        typer.Option("--reset", help="Take every group from its owner; the next message finds a new one."),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", metavar="GROUP", help="Only this group (as `groups list` shows it)."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="CONSUMER", help="The consumer that gets the group.")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="A plan of `dispatcher pipeline plan`: carries out the moves that still apply.",
        ),
    ] = None,
    pause: Annotated[
        PauseName | None,
        typer.Option(
            help=(
                "Which messages wait meanwhile: those of moving groups (until all in flight are "
                "settled), all, or none."
            )
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would move.")] = False,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Move groups: with no option as few as make the consumers' numbers of groups even."""
    if plan is not None and (reset or group is not None or to is not None):
        raise typer.BadParameter("does not go with --reset, --group or --to", param_hint="--plan")
    if to is not None and group is None:
        raise typer.BadParameter("goes with --group", param_hint="--to")
    if to is not None and reset:
        raise typer.BadParameter("does not go with --reset", param_hint="--to")
    waits = pause.value if pause is not None else None
    if plan is not None:
        result = apply_plan(file, lane, plan, pause=waits, dry_run=dry_run, timeout_ms=timeout_ms)
        show = show_planned
    else:
        verb = verbs.rebalance(group, to, reset=reset, dry_run=dry_run, pause=waits)
        result = ask_lane(file, lane, verb.command, verb.arguments, timeout_ms)
        show = _show
    if as_json:
        print_json(result)
        return
    show(result)
    if result.get("moves") and result.get("pause") == PauseName.NONE.value:
        print("Messages in flight stay with their consumer: two consumers may work on one group.")
    elif result.get("moves") and result.get("pause") == PauseName.LANE.value:
        print("Nothing is handed out until everything in flight is settled.")


def _show(result: dict[str, Any]) -> None:
    moves, groups = result.get("moves", []), int(result.get("groups", 0))
    out = console()
    if moves:
        rows = [
            (move.get("group"), move.get("from"), move.get("to"), move.get("waits_for")) for move in moves
        ]
        out.print(table(_COLUMNS, rows, numbers=("waits for",)))
    if groups > len(moves):
        out.print(f"… and {groups - len(moves):,} more")
    out.print(verbs.rebalance().say(result))
