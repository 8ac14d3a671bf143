"""`dispatcher reload`: a changed configuration file, applied by the dispatchers that run."""

from __future__ import annotations

from typing import Annotated

import typer

from dispatcher.cli import options
from dispatcher.cli.command_client import ask
from dispatcher.cli.output import print_json
from dispatcher.cli.rabbitmq import connected
from dispatcher.errors import BrokerUnavailable, CommandRefused, ConfigurationError, DispatcherError, NoAnswer


def reload(
    lane: Annotated[
        str | None,
        typer.Argument(metavar="LANE", help="Only this lane's leader; without it, all leaders."),
    ] = None,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Let dispatchers read their configuration file again: all of it applies, or nothing does.

    Each reads the file it was started with. Those that stand by everywhere are told by SIGHUP.
    """
    settings = options.load_settings(file)
    wanted = [options.lane_names(settings, name) for name in ([lane] if lane else settings.lanes)]
    told: dict[tuple[str, str], str] = {}  # by lane and dispatcher
    silent: dict[str, DispatcherError] = {}
    with connected(settings.rabbitmq, "reload") as connection:
        for names in wanted:
            if names.lane in _started(told):
                continue  # it may not lead yet
            try:
                result = ask(connection, names, "reload", {}, timeout_ms=timeout_ms)
            except CommandRefused as refused:
                raise ConfigurationError(str(refused).splitlines()) from None
            except (BrokerUnavailable, NoAnswer) as error:
                silent[names.lane] = error
                continue
            for name, change in result.get("lanes", {}).items():
                # Who leads several lanes is asked for each: what it said first is what it did.
                told.setdefault((name, str(result.get("dispatcher"))), str(change))
    for name, failure in silent.items():
        if name not in _started(told):
            raise failure
    if as_json:
        rows = [{"lane": name, "dispatcher": who, "change": change} for (name, who), change in told.items()]
        print_json({"lanes": rows})
        return
    for (name, dispatcher), change in told.items():
        print(f"{name}: {change} at {dispatcher}")


def _started(told: dict[tuple[str, str], str]) -> set[str]:
    """Lanes without a leader before, which a dispatcher has started that leads another lane."""
    return {name for (name, _), change in told.items() if change == "started"}
