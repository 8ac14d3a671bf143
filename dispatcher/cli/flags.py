"""Commands that set what lasts: `groups pause|resume|pin` and `consumers drain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dispatcher.cli import options, verbs
from dispatcher.cli.command_client import ask_lane
from dispatcher.cli.output import print_result
from dispatcher.cli.verbs import Verb

GroupArgument = Annotated[
    str | None,
    typer.Argument(metavar="GROUP", help="Group id as `groups list` shows it.", show_default=False),
]
WholeLane = Annotated[bool, typer.Option("--all", help="The whole lane instead of one group.")]
New = Annotated[
    bool, typer.Option("--new", help="Also a group that has had no message yet: from its first one on.")
]
Undo = Annotated[bool, typer.Option("--undo", help="End it.")]


def pause(
    lane: options.LaneName,
    group: GroupArgument = None,
    everything: WholeLane = False,
    new: New = False,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Hand over no more messages of a group, or of the lane, until `resume`. Messages in flight finish."""
    _refuse_both(group, everything=everything)
    if new and everything:
        raise typer.BadParameter("is for one group, not for --all", param_hint="--new")
    _carry_out(verbs.pause(lane, group, new=new), file, lane, timeout_ms, as_json=as_json)


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
    _refuse_both(group, everything=everything)
    _carry_out(verbs.resume(lane, group), file, lane, timeout_ms, as_json=as_json)


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
    _carry_out(verbs.pin(group, consumer), file, lane, timeout_ms, as_json=as_json)


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
    _carry_out(verbs.drain(consumer, undo=undo), file, lane, timeout_ms, as_json=as_json)


def _carry_out(verb: Verb, file: Path, lane: str, timeout_ms: int, *, as_json: bool) -> None:
    result = ask_lane(file, lane, verb.command, verb.arguments, timeout_ms)
    print_result(result, verb.say(result), as_json=as_json)


def _refuse_both(group: str | None, *, everything: bool) -> None:
    if (group is None) is not everything:
        raise typer.BadParameter("name a group, or say --all for the whole lane", param_hint="GROUP")
