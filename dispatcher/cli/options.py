"""Options and arguments that several commands have."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from dispatcher.errors import ConfigurationError
from dispatcher.settings import Settings
from dispatcher.settings import file as config
from dispatcher.settings.units import DURATION_PATTERN, format_duration, parse_duration_ms
from dispatcher.wire.json_fields import SHORT_STRING_BYTES_MAX, is_short_string
from dispatcher.wire.protocol import LaneNames

DEFAULT_CONFIG: Final = Path("dispatcher.yaml")
#: A dispatcher under load answers within a few milliseconds; one that is taking over needs seconds.
DEFAULT_TIMEOUT_MS: Final = 10_000
_TIMEOUT_MS_MAX: Final = 3_600_000
#: What `parse_instant_us` takes.
TIME_HELP: Final = "2h (ago), or 2026-01-31T14:00 (UTC unless it has an offset: +02:00)"
#: 9999-01-01: up to then days can be added.
_END_OF_TIME_US: Final = 253_370_764_800_000_000


def parse_timeout(value: str | int) -> int:
    """Milliseconds; for options. Raises typer.BadParameter."""
    try:
        timeout_ms = parse_duration_ms(value) if isinstance(value, str) else value  # the default is a number
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not 0 < timeout_ms <= _TIMEOUT_MS_MAX:
        raise typer.BadParameter(f"must be from 1ms to {format_duration(_TIMEOUT_MS_MAX)}")
    return timeout_ms


def parse_instant_us(text: str) -> int:
    """A time as µs since 1970. The text is a time, which is UTC unless it has an offset, or a duration, which
    counts back from now. For options: raises typer.BadParameter."""
    try:
        if re.fullmatch(DURATION_PATTERN, text):
            found_us = time.time_ns() // 1_000 - parse_duration_ms(text) * 1_000
        else:
            found = datetime.fromisoformat(text)
            found = found if found.tzinfo else found.replace(tzinfo=UTC)
            found_us = round(found.timestamp() * 1_000_000)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither a time (2026-01-31T14:00, UTC unless it has an offset) nor a duration (2h)"
        ) from None
    if not 0 <= found_us < _END_OF_TIME_US:
        raise typer.BadParameter(f"{text!r} is before 1970, or after 9998")
    return found_us


def short_string(value: str | None) -> str | None:
    """For options that RabbitMQ is to understand. Raises typer.BadParameter."""
    if value is not None and not is_short_string(value):
        raise typer.BadParameter(f"must be text of 1 to {SHORT_STRING_BYTES_MAX} bytes")
    return value


ConfigFile = Annotated[
    Path, typer.Option("--config", "-c", envvar="DISPATCHER_CONFIG", help="Configuration file (YAML).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show all columns; they need a wide window.")]
Timeout = Annotated[
    int,
    typer.Option(
        "--timeout",
        parser=parse_timeout,
        metavar="DURATION",
        show_default=format_duration(DEFAULT_TIMEOUT_MS),
        help="How long to wait for the dispatcher's answer.",
    ),
]
LaneName = Annotated[str, typer.Argument(metavar="LANE", help="Name of the lane, as in the configuration.")]
GroupText = Annotated[
    str, typer.Argument(metavar="GROUP", help="Group id as `groups list` shows it; %xx stands for one byte.")
]
ConsumerName = Annotated[
    str, typer.Argument(metavar="CONSUMER", help="Its id, as `consumers list` shows it.")
]

ManagementUrl = Annotated[
    str | None,
    typer.Option(
        "--management",
        metavar="URL",
        envvar="DISPATCHER_RABBITMQ_MANAGEMENT_URL",
        help="RabbitMQ's management API; usually http on port 15672 of its host, or https on port 15671 if "
        "the broker's URL has TLS, with the same user.",
    ),
]


def load_settings(file: Path) -> Settings:
    """The settings in this file. Raises ConfigurationError."""
    return config.load(file, os.environ)


def shards_of(settings: Settings, lane: str) -> list[str]:
    """The names of the lane's shards; none: it has no shards, or is one."""
    return [
        name for name, each in settings.lanes.items() if each.shard is not None and each.shard.lane == lane
    ]


def lane_names(settings: Settings, lane: str) -> LaneNames:
    """The lane's names on the broker. Raises ConfigurationError for a lane that is not configured."""
    if lane not in settings.lanes:
        known = ", ".join(settings.lanes)
        raise ConfigurationError(f"lanes.{lane}: there is no such lane in the configuration (it has {known})")
    return LaneNames(lane, settings.prefix)
