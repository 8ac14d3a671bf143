"""Commands to a lane with shards: one about a group goes to the shard that has it, any other to each."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import typer

from dispatcher.cli import options
from dispatcher.cli.command_client import ask
from dispatcher.cli.output import collected_json, console, print_json
from dispatcher.cli.rabbitmq import connected
from dispatcher.errors import CommandRefused, ConfigurationError, NoAnswer
from dispatcher.settings import Settings

Command = Callable[..., None]


def over_shards(command: Command) -> Command:
    """For a command with `lane` and `file`, perhaps with `group` and `as_json`: the name of a lane with
    shards stands for its shards."""

    @wraps(command)
    def run(**given: Any) -> None:
        try:
            settings = options.load_settings(given["file"])
        except ConfigurationError:
            command(**given)  # which may have something to say about its usage before
            return
        shards = options.shards_of(settings, given["lane"])
        if not shards:
            command(**given)
        elif given.get("group") is not None:
            lane = _shard_with(settings, shards, given["group"], given["timeout_ms"])
            command(**{**given, "lane": lane})
        elif given.get("watches") or given.get("plan") is not None:
            raise typer.BadParameter(f"one of {', '.join(shards)} goes with this", param_hint="LANE")
        else:
            _in_each(command, shards, given)

    return run


def _in_each(command: Command, shards: list[str], given: dict[str, Any]) -> None:
    """One after the other; what one refuses, others may do."""
    as_json = given.get("as_json")
    refused: list[CommandRefused | NoAnswer] = []
    results: dict[str, Any] = {}
    for shard in shards:
        if not as_json:
            console().print(f"{shard}:")
        with collected_json() as printed:
            try:
                command(**{**given, "lane": shard})
            except (CommandRefused, NoAnswer) as problem:
                refused.append(type(problem)(f"{shard}: {problem}"))
        if printed:
            results[shard] = printed[0]
    if as_json:
        print_json({"shards": results})
    if refused:
        raise type(refused[0])("; ".join(map(str, refused)))


def _shard_with(settings: Settings, shards: list[str], group: str, timeout_ms: int) -> str:
    """The shard that has messages of the group, else the one that knows it. One in which it was before
    `shards` changed may know it, too."""
    waiting: dict[str, int] = {}
    with connected(settings.rabbitmq, "groups.show") as connection:
        for shard in shards:
            names = options.lane_names(settings, shard)
            try:
                row = ask(connection, names, "groups.show", {"group": group}, timeout_ms=timeout_ms)
            except CommandRefused:
                continue
            waiting[shard] = sum(int(row.get(key) or 0) for key in ("held", "in_flight", "parked"))
    best = [shard for shard, count in waiting.items() if count == max(waiting.values())]
    if not best:
        raise CommandRefused(f"no group {group} in {', '.join(shards)}")
    if len(best) > 1:
        raise CommandRefused(f"group {group} is in {' and in '.join(best)}: name the one that you mean")
    return best[0]
