"""Commands that set what lasts: `groups pause|resume|pin` and `consumers drain`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dispatcher.cli import options
from dispatcher.cli.command_client import ask_lane
from dispatcher.cli.output import counted, print_result

GroupArgument = Annotated[
    str | None,
    typer.Argument(metavar="GROUP", help="Group id as `groups list` shows it.", show_default=False),
]
WholeLane = Annotated[bool, typer.Option("--all", help="The whole lane instead of one group.")]
Undo = Annotated[bool, typer.Option("--undo", help="End it.")]


def pause(
    lane: options.LaneName,
    group: GroupArgument = None,
    everything: WholeLane = False,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Hand over no more messages of a group, or of the lane, until `resume`. Messages in flight finish."""
    result = ask_lane(file, lane, "groups.pause", _which(group, everything=everything), timeout_ms)
    text = f"paused{_already(result)}; {counted(result.get('in_flight'), 'message')} in flight"
    print_result(result, f"{result.get('group') or lane}: {text}", as_json=as_json)


def resume(
    lane: options.LaneName,
    group: GroupArgument = None,
    everything: WholeLane = False,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Let a paused group, or the paused lane, go on; or a group that waits for a missing number. `--all` ends
    the lane's pause, not its groups'."""
    result = ask_lane(file, lane, "groups.resume", _which(group, everything=everything), timeout_ms)
    text = "goes on" if result.get("changed") else "was not paused"
    print_result(result, f"{result.get('group') or lane}: {text}", as_json=as_json)


def pin(
    lane: options.LaneName,
    group: options.GroupText,
    consumer: Annotated[
        str | None, typer.Argument(metavar="CONSUMER", help="Id of the consumer.", show_default=False)
    ] = None,
    undo: Undo = False,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Give a group to one consumer only: while that one is not there, the group waits."""
    if (consumer is None) is not undo:
        raise typer.BadParameter("name a consumer, or say --undo", param_hint="CONSUMER")
    arguments = {"group": group, "consumer": consumer, "undo": undo}
    result = ask_lane(file, lane, "groups.pin", arguments, timeout_ms)
    owner, in_flight = result.get("owner"), result.get("in_flight")
    if undo:
        text = "no longer pinned" if result.get("changed") else "was not pinned"
    else:
        text = f"pinned to {consumer}{_already(result)}"
        if in_flight and owner not in (None, consumer):
            text += f"; goes there when {owner} has settled {counted(in_flight, 'message')}"
    print_result(result, f"{result.get('group')}: {text}", as_json=as_json)


def drain(
    lane: options.LaneName,
    consumer: options.ConsumerName,
    undo: Undo = False,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Give a consumer no more messages. Each of its groups goes to another consumer once its messages are
    settled.

    It lasts until `--undo`, over restarts of the consumer and of the dispatcher.
    """
    result = ask_lane(file, lane, "consumers.drain", {"consumer": consumer, "undo": undo}, timeout_ms)
    if undo:
        text = "gets messages again" if result.get("changed") else "was not drained"
    else:
        text = f"drained{_already(result)}; {counted(result.get('in_flight'), 'message')} in flight"
        if pinned := result.get("pinned"):
            text += f"; {counted(pinned, 'group')} pinned to it"
    print_result(result, f"{consumer}: {text}", as_json=as_json)


def _already(result: dict[str, Any]) -> str:
    """Said again it changes nothing."""
    return "" if result.get("changed") else " already"


def _which(group: str | None, *, everything: bool) -> dict[str, Any]:
    if (group is None) is not everything:
        raise typer.BadParameter("name a group, or say --all for the whole lane", param_hint="GROUP")
    return {"group": group, "all": everything}
