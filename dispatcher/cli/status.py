"""`dispatcher status`: what the lanes do now."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from dispatcher.cli import options
from dispatcher.cli.command_client import ask
from dispatcher.cli.output import (
    ACT,
    LOOK,
    console,
    counted,
    in_colour,
    print_error,
    print_json,
    shown,
    span,
    table,
)
from dispatcher.cli.rabbitmq import connected
from dispatcher.cli.watch import Watch, refuse_json, watch
from dispatcher.core.bounds import UNACKED_TOLD_MS
from dispatcher.errors import BrokerUnavailable, CommandRefused, NoAnswer, ProtocolViolation
from dispatcher.settings import Settings
from dispatcher.wire.protocol import LaneNames

_COLUMNS = ("inbound queue", "weight", "share", "dispatched", "held", "in flight", "look-ahead")
#: The page and `--json` have more.
FAIL_OVERS_SHOWN: Final = 3
_MESSAGES = ("held", "in flight", "unconfirmed")
#: Of each count that is 0 in a healthy lane: its key, what it counts, and the state of those.
_ODD = (
    ("groups_paused", "group", "paused"),
    ("groups_pinned", "group", "pinned"),
    ("groups_stopped", "group", "stopped"),
    ("operations", "operation", "under way"),
    ("consumers_drained", "consumer", "drained"),
    ("consumers_frozen", "consumer", "frozen"),
    ("consumers_waiting", "consumer", "waiting for an id that another one has"),
    ("undeliverable", "message", "undeliverable"),
    ("dead_letters", "message", "in the dead queue"),
    ("parked_lost", "parked message", "lost"),
)


def status(
    lane: Annotated[
        str | None, typer.Argument(metavar="LANE", help="Only this lane; without it, every configured one.")
    ] = None,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    watches: Watch = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Show what lanes do: inbound queues and their shares, consumers, groups, messages that wait and that are
    in flight.

    `stands by` names the dispatchers that would lead next; `fail-over` says who led before, and why that
    ended: as far as Redis knows it.

    `problem` is what keeps a lane from dispatching, as /readyz says it. `attention` counts what is not
    normal: paused, pinned and stopped groups, operations under way, drained and frozen consumers, those
    that wait for an id that another one has, messages in the dead queue.

    Fails (1) when a lane's dispatcher does not answer; the other lanes are shown all the same.
    """
    refuse_json(watches=watches, as_json=as_json)
    settings = options.load_settings(file)
    wanted = list(settings.lanes)
    if lane is not None:
        wanted = options.shards_of(settings, lane) or [lane]
    names = [options.lane_names(settings, name) for name in wanted]

    def look() -> list[dict[str, Any]]:
        return _look(settings, names, timeout_ms)

    if watches:
        watch(lambda out: _print_all(out, look()))
        return
    found = look()
    if as_json:
        print_json({"lanes": found})
    else:
        _print_all(console(), found)
    if len(found) < len(names):
        raise typer.Exit(1)


def _look(settings: Settings, names: list[LaneNames], timeout_ms: int) -> list[dict[str, Any]]:
    """The status of the lanes that answer; it is told which do not."""
    found = []
    with connected(settings.rabbitmq, "status") as connection:
        for name in names:
            try:
                found.append(ask(connection, name, "status", {}, timeout_ms=timeout_ms))
            except (BrokerUnavailable, CommandRefused, NoAnswer, ProtocolViolation) as error:
                print_error(f"dispatcher: {error}")
    return found


def _print_all(out: Console, found: list[dict[str, Any]]) -> None:
    for result in found:
        _print(out, result)


def _print(out: Console, result: dict[str, Any]) -> None:
    out.print(
        f"{result.get('lane')}: {result.get('policy')}, {result.get('state')}"
        f"{', paused' if result.get('paused') else ''} at {result.get('dispatcher')} "
        f"for {span(result.get('since_ms'))}, lane epoch {result.get('lane_epoch')}"
    )
    _print_replicas(out, result)
    if problem := result.get("problem"):
        out.print(in_colour(f"problem: {problem}", ACT))
    if hold := result.get("hold"):
        out.print(in_colour(f"held: {_said(hold)}", LOOK))
    if odd := attention(result):
        out.print(in_colour(f"attention: {odd}", LOOK))
    inbound = result.get("inbound", [])
    rows = [
        (
            row.get("queue"), row.get("weight"), _percent(row.get("share")), row.get("dispatched"),
            row.get("held"), row.get("in_flight"), row.get("look_ahead"),
        )
        for row in inbound
    ]  # fmt: skip
    out.print(table(_COLUMNS, rows, numbers=_COLUMNS[1:]))
    for row in inbound:
        _print_inbound(out, row, result.get("hold"))
    for row in result.get("parking", []):
        of = f", of consumer {row.get('consumer')}" if row.get("consumer") else ""
        out.print(
            f"{row.get('queue')}: {counted(row.get('parked'), 'message')} parked, "
            f"{counted(row.get('groups'), 'group')}{of}"
        )
        if row.get("problem"):
            out.print(f"{row.get('queue')}: RabbitMQ can't open it, its groups wait: {row['problem']}")
    sums = [counted(result.get(f"{noun}s"), noun) for noun in ("consumer", "group")]
    sums += [f"{shown(result.get(word.replace(' ', '_')))} {word}" for word in _MESSAGES]
    out.print(", ".join(sums))
    busiest = result.get("busiest_group")
    if busiest:
        out.print(
            f"busiest group: {busiest.get('group')}, {_percent(busiest.get('share'))} of the last minute, "
            f"{counted(busiest.get('depth'), 'message')}"
            f"{', of consumer ' + str(busiest['owner']) if busiest.get('owner') else ''}"
        )
    counters = result.get("counters", {})
    if counters:
        out.print(
            ", ".join(f"{name.replace('_', ' ')} {shown(value)}" for name, value in sorted(counters.items()))
        )
    out.print()


def _print_inbound(out: Console, row: dict[str, Any], lane_hold: dict[str, Any] | None) -> None:
    """What its row in the table leaves no room for. What holds the whole lane has been said."""
    if row.get("full"):
        out.print(f"{row.get('queue')}: the look-ahead is full of {row.get('full_of')}")
    if (hold := row.get("ungrouped_hold")) and hold != lane_hold:
        out.print(f"{row.get('queue')}: messages without a group wait. {_said(hold)}")
    if row.get("settled_unacked_ms", 0) >= UNACKED_TOLD_MS:
        unacked, since = counted(row.get("settled_unacked"), "settled message"), row["settled_unacked_ms"]
        out.print(f"{row.get('queue')}: {unacked} not acked, the first one for {span(since)}")


def _said(hold: dict[str, Any]) -> str:
    return f"{shown(hold.get('verdict'))} ({hold.get('reason')})"


def _print_replicas(out: Console, result: dict[str, Any]) -> None:
    """Who stands by, and the latest fail-overs."""
    standbys, leaderships = result.get("standbys"), result.get("leaderships", [])
    if standbys is not None:
        named = [f"{each.get('dispatcher')} for {span(each.get('since_ms'))}" for each in standbys]
        out.print(f"stands by: {', '.join(named) or 'nobody'}")
    for now, before in pairwise(leaderships[: FAIL_OVERS_SHOWN + 1]):
        out.print(
            f"fail-over {span(now.get('began_ms'))} ago: from {before.get('dispatcher')} to "
            f"{now.get('dispatcher')}, lane epoch {now.get('lane_epoch')}, because: "
            f"{before.get('why') or 'not known'}"
        )


def attention(result: dict[str, Any]) -> str:
    """Counts of what is not normal in a lane's status, nothing if all is well."""
    odd = [f"{counted(count, noun)} {what}" for key, noun, what in _ODD if (count := result.get(key))]
    return ", ".join(odd)


def _percent(share: Any) -> str | None:
    return f"{share:.1%}" if isinstance(share, int | float) else None
