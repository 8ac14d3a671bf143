"""`dispatcher groups …`: the message groups of a lane."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

from dispatcher.cli import flags, operations, options, verbs
from dispatcher.cli.command_client import ask, ask_lane
from dispatcher.cli.output import console, counted, print_json, print_result, shown, span, states, table
from dispatcher.cli.rabbitmq import connected, look_at_queue
from dispatcher.cli.shards import in_each_shard, over_shards
from dispatcher.cli.watch import Watch, refuse_json, watch
from dispatcher.core.bounds import GROUPS_PER_PAGE_MAX
from dispatcher.core.views.group_states import AskedState
from dispatcher.errors import CommandRefused
from dispatcher.wire.plain_text import printable

app = typer.Typer(
    help="Look at the message groups of a lane; pause, pin, close, purge and move them.", no_args_is_help=True
)
app.command()(over_shards(flags.pause))
app.command()(in_each_shard(flags.resume))
app.command()(over_shards(flags.pin))
app.command()(over_shards(operations.purge))
app.command()(over_shards(operations.move))
app.command()(over_shards(operations.reroute))

_ROW_KEYS = ("group", "state", "owner", "epoch", "held", "in_flight", "parked")
_FLAGS = "flags"
_COLUMNS = ("group", "state", "owner", "epoch", "held", "in flight", "parked", "oldest")
_REASON = "reason"
_MESSAGE_KEYS = ("inbound", "arrival", "state", "seq", "group_seq", "attempt", "consumer", "size")
_MESSAGE_COLUMNS = (
    "inbound queue",
    "arrival",
    "state",
    "seq",
    "group seq",
    "hand-overs",
    "consumer",
    "bytes",
    "age",
)
#: Numbers that only name something: their digits stay together.
_NAMES = frozenset({"epoch", "seq", "group_seq", "number"})


class SortOrder(StrEnum):
    """What `groups list` sorts by."""

    DEPTH = "depth"
    AGE = "age"
    GROUP = "group"


@app.command("list")
@over_shards
def list_groups(
    lane: options.LaneName,
    limit: Annotated[int, typer.Option(min=1, max=GROUPS_PER_PAGE_MAX, help="Show at most this many.")] = 50,
    offset: Annotated[int, typer.Option(min=0, help="Leave out this many from the beginning.")] = 0,
    sort: Annotated[
        SortOrder, typer.Option(help="Deepest first, oldest waiting message first, or by id.")
    ] = SortOrder.DEPTH,
    after: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="With --sort group: those behind this one."),
    ] = None,
    state: Annotated[
        AskedState | None, typer.Option(help="Only groups in this state; drained: their consumer is.")
    ] = None,
    owner: Annotated[str | None, typer.Option(metavar="CONSUMER", help="Only groups that it owns.")] = None,
    match: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only ids that match, as shown; * and ? stand for any."),
    ] = None,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    watches: Watch = False,
    wide: options.Wide = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """List groups with their owner, how many messages wait, and how many are in flight."""
    refuse_json(watches=watches, as_json=as_json)
    wanted = state.value if state is not None else None
    arguments = {
        "limit": limit, "offset": offset, "sort": sort.value, "after": after, "state": wanted,
        "owner": owner, "match": match,
    }  # fmt: skip

    def look() -> dict[str, Any]:
        return ask_lane(file, lane, "groups.list", arguments, timeout_ms)

    if watches:
        watch(lambda out: _print_groups(out, look(), wide=wide))
    elif as_json:
        print_json(look())
    else:
        _print_groups(console(), look(), wide=wide)


def _print_groups(out: Console, result: dict[str, Any], *, wide: bool) -> None:
    groups = result.get("groups", [])
    rows = [
        (
            *(states(cell) if key == "state" else cell for key, cell in _pairs(row)),
            span(row.get("oldest_ms")),
            row.get(_REASON),
            states(flags_text(row)),
        )
        for row in groups
    ]
    left_out = () if wide else ("epoch",)
    out.print(table((*_COLUMNS, _REASON, _FLAGS), rows, numbers=_COLUMNS[3:], left_out=left_out))
    out.print(f"{shown(len(groups))} of {counted(result.get('total'), 'group')}")


@app.command("show")
@over_shards
def show_group(
    lane: options.LaneName,
    group: options.GroupText,
    headers: Annotated[bool, typer.Option("--headers", help="Also headers and properties of each.")] = False,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    wide: options.Wide = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Show one group with its first messages, those in flight before those that wait."""
    result = ask_lane(file, lane, "groups.show", {"group": group}, timeout_ms)
    if as_json:
        print_json(result)
        return
    out = console()
    for key, value in zip(_ROW_KEYS, _cells(result, _ROW_KEYS), strict=True):
        out.print(f"{key.replace('_', ' '):<10} {shown(value)}")
    out.print(f"{'oldest':<10} {shown(span(result.get('oldest_ms')))}")
    out.print(f"{_FLAGS:<10} {shown(flags_text(result))}")
    if result.get("last_number") is not None:
        out.print(f"{'number':<10} {result['last_number']} was the last")
    _print_messages(out, result.get("messages", []), wide=wide)
    if headers:
        _print_headers(out, result.get("messages", []))


@app.command("why")
@over_shards
def why_group(
    lane: options.LaneName,
    group: options.GroupText,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Say why a group waits: the message in front, which consumer has it since when, and how many wait behind
    it."""
    settings = options.load_settings(file)
    names = options.lane_names(settings, lane)
    with connected(settings.rabbitmq, "groups.why") as connection:
        dead = look_at_queue(connection, names.dead).ready
        try:
            result = ask(connection, names, "groups.why", {"group": group}, timeout_ms=timeout_ms)
        except CommandRefused as refused:
            more = f"; {_of_dead(dead, lane, group)}" if dead else ""
            raise CommandRefused(f"{refused}{more}") from None
    result["dead_letters"] = dead
    if as_json:
        print_json(result)
        return
    out = console()
    for line in why_lines(result):
        out.print(line)
    if dead:
        out.print(f"- {_of_dead(dead, lane, group)}")


@app.command("close")
@over_shards
def close_group(
    lane: options.LaneName,
    group: options.GroupText,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """End a group as a negative sequence does: once it is settled, its next message goes to any consumer."""
    verb = verbs.close(group)
    result = ask_lane(file, lane, verb.command, verb.arguments, timeout_ms)
    print_result(result, verb.say(result), as_json=as_json)


def _of_dead(count: int, lane: str, group: str) -> str:
    return (
        f"the dead queue has {counted(count, 'message')}; "
        f"`dispatcher dead list {lane} --group {shlex.quote(group)}` shows those of this group"
    )


def why_lines(result: dict[str, Any]) -> Iterator[str]:
    """The result of `groups why` in words."""
    reason = result.get(_REASON)
    yield f"{result.get('group')}: {shown(result.get('verdict'))}" + (f" ({reason})" if reason else "")
    blocking = result.get("blocking")
    if isinstance(blocking, dict):
        message = blocking.get("message")
        message = message if isinstance(message, dict) else {}
        since = span(blocking.get("since_ms"))
        yield (
            f"In front: message {message.get('arrival')} of {message.get('inbound')} "
            f"(seq {message.get('seq')}, hand-over {shown(message.get('attempt'))}), "
            f"at consumer {shown(blocking.get('consumer'))}" + (f" for {since}" if since else "")
        )
    where = "Behind it" if isinstance(blocking, dict) else "Waiting"
    yield f"{where}: {counted(result.get('behind'), 'message')}"
    yield from (f"- {shown(detail)}" for detail in result.get("details", []))
    dead = result.get("dead_lettered", {})
    if dead.get("count"):
        yield (
            f"- at least {counted(dead['count'], 'message')} of it went to the dead queue in the last "
            f"{span(dead.get('since_ms'))}, since this leadership began"
        )


def _print_messages(out: Console, messages: list[dict[str, Any]], *, wide: bool) -> None:
    """A line each; with the producers' numbers where the lane checks these."""
    if not messages:
        return
    numbered = any(message.get("number") is not None for message in messages)
    columns = (*_MESSAGE_COLUMNS, *(["number"] if numbered else []))
    keys = (*_MESSAGE_KEYS, "age", *(["number"] if numbered else []))
    rows = [_cells({**message, "age": span(message.get("age_ms"))}, keys) for message in messages]
    right = ("seq", "group seq", "hand-overs", "bytes", "age", "number")
    out.print()
    out.print(table(columns, rows, numbers=right, left_out=() if wide else ("seq", "group seq")))


def _print_headers(out: Console, messages: list[dict[str, Any]]) -> None:
    """What each message says of itself: a paragraph each."""
    for message in messages:
        out.print(f"\n{message.get('inbound')} {message.get('arrival')}")
        facts = {name: message.get(name) for name in ("exchange", "routing_key")}
        for name, value in {**facts, **message.get("properties", {})}.items():
            out.print(f"  {name}: {shown(value)}")
        for name, value in message.get("headers", {}).items():
            out.print(f"  header {printable(name)}: {printable(str(value))}")
        if left_out := message.get("headers_left_out"):
            out.print(f"  and {counted(left_out, 'header')} more")


def flags_text(row: dict[str, Any]) -> str | None:
    """What operators have set of a group."""
    set_now = ["paused"] if row.get("paused") else []
    if row.get("pin") is not None:
        set_now.append(f"pinned to {row['pin']}")
    if row.get("operation") is not None:
        set_now.append(f"in transition by {row['operation']}")
    if row.get("stopped") is not None:
        set_now.append(f"stopped: {row['stopped']}")
    return ", ".join(set_now) or None


def _pairs(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return zip(_ROW_KEYS, _cells(row, _ROW_KEYS), strict=True)


def _cells(row: dict[str, Any], keys: tuple[str, ...]) -> list[Any]:
    return [str(row[key]) if key in _NAMES and row.get(key) is not None else row.get(key) for key in keys]
