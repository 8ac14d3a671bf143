"""Commands to a lane with shards: one about a group goes to the shard that has it, any other to each.

What operators say of a group lasts also when the group gets another shard. So a pause of a new group goes to
each shard, and what ends a pause or a pin goes to each that knows the group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from dispatcher.cli import options
from dispatcher.cli.command_client import ask
from dispatcher.cli.output import collected_json, console, print_error, print_json
from dispatcher.cli.rabbitmq import OperatorConnection, connected, look_at_queue
from dispatcher.cli.watch import refuse_json, watch
from dispatcher.errors import BrokerUnavailable, CommandRefused, ConfigurationError, NoAnswer
from dispatcher.settings import Settings
from dispatcher.wire.protocol import LaneNames

Command = Callable[..., None]


def over_shards(command: Command) -> Command:
    """For a command with `lane` and `file`, perhaps with `group`, `new`, `undo`, `plan`, `watches` and
    `as_json`: the name of a lane with shards stands for its shards."""

    @wraps(command)
    def run(**given: Any) -> None:
        settings, shards = _shards(given)
        if settings is None or not shards:
            command(**given)
        elif given.get("group") is not None and not given.get("new"):
            if given.get("undo"):
                _in_each(command, shards, given, one_is_enough=True)
            else:
                _where_the_group_is(command, settings, shards, given)
        elif given.get("plan") is not None:
            command(**{**given, "lane": _shard_of_plan(given["plan"], shards)})
        elif given.get("watches"):
            refuse_json(watches=True, as_json=given["as_json"])
            watch(lambda _: _in_each(command, shards, {**given, "watches": False}))
        else:
            _in_each(command, shards, given)

    return run


def in_each_shard(command: Command) -> Command:
    """The same for a command about what a group may have in each shard; it is refused if the group has
    nothing in any."""

    @wraps(command)
    def run(**given: Any) -> None:
        _, shards = _shards(given)
        if shards:
            _in_each(command, shards, given, one_is_enough=bool(given.get("group") or given.get("origin")))
        else:
            command(**given)

    return run


def _shards(given: dict[str, Any]) -> tuple[Settings | None, list[str]]:
    """Without settings the command may have something to say about its usage before."""
    try:
        settings = options.load_settings(given["file"])
    except ConfigurationError:
        return None, []
    return settings, options.shards_of(settings, given["lane"])


def _in_each(
    command: Command, shards: list[str], given: dict[str, Any], *, one_is_enough: bool = False
) -> None:
    """One after the other; what one refuses, others may do."""
    as_json = given.get("as_json")
    refused: list[CommandRefused | NoAnswer | BrokerUnavailable] = []
    results: dict[str, Any] = {}
    for shard in shards:
        if not as_json:
            console().print(f"{shard}:")
        with collected_json() as printed:
            try:
                command(**{**given, "lane": shard})
            except CommandRefused as problem:
                refused.append(CommandRefused(f"{shard}: {problem}"))
            except NoAnswer as problem:
                refused.append(NoAnswer(f"{shard}: {problem}"))
            except BrokerUnavailable as problem:
                refused.append(BrokerUnavailable(f"{shard}: {problem}"))
        if printed:
            results[shard] = printed[0]
    if as_json:
        print_json({"shards": results})
    if one_is_enough and len(refused) < len(shards):
        refused = [each for each in refused if not isinstance(each, CommandRefused)]
    if refused:
        raise type(refused[0])("; ".join(map(str, refused)))


def _shard_of_plan(plan: Path, shards: list[str]) -> str:
    from dispatcher.pipeline.plan_file import read_plan

    lane = read_plan(plan).lane
    if lane not in shards:
        raise ConfigurationError(f"{plan}: is a plan for lane {lane}, not for one of {', '.join(shards)}")
    return lane


def _where_the_group_is(
    command: Command, settings: Settings, shards: list[str], given: dict[str, Any]
) -> None:
    found = _shards_with(settings, shards, given["group"], given["timeout_ms"])
    if len(found) == 1:
        command(**{**given, "lane": found[0]})
    else:
        _in_each(command, found, given)


def _shards_with(settings: Settings, shards: list[str], group: str, timeout_ms: int) -> list[str]:
    """The shard that has messages of the group, else all that know it. One in which it was before `shards`
    changed may know it, too. Those that nobody leads are asked last: they may be long in answering."""
    names = [options.lane_names(settings, shard) for shard in shards]
    waiting, silent = dict[str, int](), dict[str, str]()
    with connected(settings.rabbitmq, "groups.show") as connection:
        led = [each for each in names if look_at_queue(connection, each.lock).consumers]
        for asked in (led, [each for each in names if each not in led]):
            if not any(waiting.values()):
                _ask_for(connection, asked, group, timeout_ms, waiting, silent)
    best = [shard for shard, count in waiting.items() if count == max(waiting.values())]
    if silent and not any(waiting.values()):  # its messages may be there
        known = f"group {group} has nothing in {', '.join(waiting)}; " if waiting else ""
        raise NoAnswer(known + "; ".join(silent.values()))
    for problem in silent.values():
        print_error(f"dispatcher: {problem}")
    if not best:
        raise CommandRefused(f"no group {group} in {', '.join(shards)}")
    if len(best) > 1 and any(waiting.values()):
        raise CommandRefused(f"group {group} is in {' and in '.join(best)}: name the one that you mean")
    return best


def _ask_for(
    connection: OperatorConnection, asked: list[LaneNames], group: str, timeout_ms: int,
    waiting: dict[str, int], silent: dict[str, str],
) -> None:  # fmt: skip
    """How many messages of the group each shard has that knows it; and which don't answer."""
    for names in asked:
        try:
            row = ask(connection, names, "groups.show", {"group": group}, timeout_ms=timeout_ms)
        except CommandRefused:
            continue
        except (NoAnswer, BrokerUnavailable) as problem:
            silent[names.lane] = str(problem)
        else:
            waiting[names.lane] = sum(int(row.get(key) or 0) for key in ("held", "in_flight", "parked"))
