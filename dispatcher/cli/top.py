"""`dispatcher top`: lanes, groups and consumers, live in a terminal."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from dispatcher.cli import options
from dispatcher.errors import ConfigurationError
from dispatcher.settings import Settings

_WITHOUT = "`dispatcher status --watch` needs neither"


def top(
    lane: Annotated[
        str | None,
        typer.Argument(metavar="LANE", help="Begin with this lane, or with its shards."),
    ] = None,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Show lanes, groups and consumers live in a terminal, and give commands by keys.

    Each command asks first. Needs the extra `top`, and a terminal of 80 columns.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigurationError(f"top needs a terminal; {_WITHOUT}")
    if find_spec("textual") is None:
        raise ConfigurationError(
            "textual is missing: install the extra with "
            f"`pip install 'rabbitmq-group-dispatcher[top]'`; {_WITHOUT}"
        )
    settings = options.load_settings(file)
    lanes, first = shown(settings, lane)
    # Textual, and all that comes with it.
    from dispatcher.cli.top_app import TopApp
    from dispatcher.cli.top_source import LeaderSource

    TopApp(LeaderSource(settings, lanes, timeout_ms), first).run()


def shown(settings: Settings, lane: str | None) -> tuple[list[str], str | None]:
    """Which lanes, and the one to begin with. Raises ConfigurationError for a lane that is not configured."""
    if lane is not None and (shards := options.shards_of(settings, lane)):
        return shards, None
    if lane is not None:
        options.lane_names(settings, lane)
    return list(settings.lanes), lane
