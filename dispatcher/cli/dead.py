"""`dispatcher dead …`: what a lane has given up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from dispatcher.cli import options
from dispatcher.cli.dead_queue import DeadMessage, DeadQueue, Selection
from dispatcher.cli.output import console, counted, print_json, print_result, shown, span, table
from dispatcher.cli.progress import progress
from dispatcher.cli.shards import in_each_shard
from dispatcher.cli.stopped import COLUMNS, KEYS, StoppedGroups
from dispatcher.errors import BrokerUnavailable, CommandRefused
from dispatcher.settings import Settings
from dispatcher.wire.group_text import parse_group
from dispatcher.wire.plain_text import printable

app = typer.Typer(help="Look at what a lane has given up, and decide about it.", no_args_is_help=True)

_KEYS = ("origin", "group", "reason", "attempt", "calls", "size", "message_id")
_COLUMNS = ("origin", "group", "reason", "hand-overs", "calls", "bytes", "message id")

GroupOption = Annotated[
    str | None, typer.Option("--group", metavar="GROUP", help="Only of this group (as `list` shows it).")
]
Reason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only with this text in the reason.")
]
Origin = Annotated[
    str | None, typer.Option("--origin", metavar="ORIGIN", help="Only this one (as `list` shows it).")
]
Everything = Annotated[bool, typer.Option("--all", help="Everything that is there.")]
First = Annotated[int | None, typer.Option("--limit", min=1, help="Only the first ones of them.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count them.")]


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with messages: release or drop them; `limit` None: all of them."""

    verb: str
    limit: int | None
    dry_run: bool
    stopped_only: bool = False  # leaves the dead queue alone

    @property
    def releases(self) -> bool:
        return self.verb == "released"

    def act(self, queue: DeadQueue) -> Callable[[DeadMessage], Awaitable[None]]:
        if self.dry_run:
            return _do_nothing
        return queue.release if self.releases else queue.drop


async def _do_nothing(_: DeadMessage) -> None:
    """A dry run."""


@app.command("list")
@in_each_shard
def list_dead(
    lane: options.LaneName,
    group: GroupOption = None,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show at most this many.")] = 50,
    offset: Annotated[int, typer.Option(min=0, help="Leave out this many from the beginning.")] = 0,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    wide: options.Wide = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """List the groups that have stopped at a message (`retry.on_exhausted: stop`), and what the dead queue
    holds, the oldest first: where it came from, why it is there, how often it was tried. It stays there."""
    settings = options.load_settings(file)
    selection = _selection(group, reason)
    stopped = StoppedGroups(file, lane, timeout_ms)
    rows_stopped = stopped.rows(selection)
    result = asyncio.run(_list(settings, lane, selection, offset, limit, timeout_ms))
    if stopped.may_be:
        result["stopped"] = rows_stopped[:limit]
    if as_json:
        print_json(result)
        return
    out = console()
    if stopped.may_be:
        cells = [(*(row[key] for key in KEYS[:-1]), span(row["since_ms"])) for row in rows_stopped[:limit]]
        out.print(table(COLUMNS, cells, numbers=COLUMNS[2:]))
        out.print(f"{counted(len(rows_stopped), 'group')} stopped")
    rows = [tuple(row[key] for key in _KEYS) for row in result["messages"]]
    left_out = () if wide else ("message id",)
    out.print(table(_COLUMNS, rows, numbers=("hand-overs", "calls", "bytes"), left_out=left_out))
    more = ", and more" if result["more"] else ""
    out.print(f"{counted(len(rows), 'message')}{more}; {shown(result['in_queue'])} in the dead queue")


@app.command("show")
@in_each_shard
def show(
    lane: options.LaneName,
    group: GroupOption = None,
    reason: Reason = None,
    origin: Origin = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Show at most this many.")] = 10,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Show messages of the dead queue whole, the oldest first: properties, headers, and the beginning of the
    body as text; a byte that is no printable text is escaped."""
    settings = options.load_settings(file)
    selection = _selection(group, reason, origin)
    result = asyncio.run(_list(settings, lane, selection, 0, limit, timeout_ms, whole=True))
    _refuse_if_none(selection, len(result["messages"]))
    if as_json:
        print_json(result)
        return
    out = console()
    for message in result["messages"]:
        titles = dict(zip(_KEYS[:-2], _COLUMNS[:-2], strict=True))
        facts = [(titles.get(key, key), message[key]) for key in (*titles, "exchange", "routing_key")]
        facts += [(key, value) for key, value in message["properties"].items() if value is not None]
        facts += [(f"header {printable(key)}", value) for key, value in message["headers"].items()]
        out.print(table(("", ""), facts, untitled=True))
        more = ", of which this is the beginning" if message["cut"] else ""
        out.print(f"{shown(message['size'])} bytes{more}:")
        out.print(message["body"])
        out.print()


@app.command("release")
@in_each_shard
def release(
    lane: options.LaneName,
    group: GroupOption = None,
    reason: Reason = None,
    origin: Origin = None,
    everything: Everything = False,
    limit: First = None,
    dry_run: DryRun = False,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Have messages processed again: those at which groups have stopped, before everything that waits behind
    them, and those in the dead queue.

    The latter go to the end of their inbound queues: later messages of their groups may have been processed
    already.
    """
    settings = options.load_settings(file)
    wanted = _wanted(group, reason, origin, everything=everything)
    stopped = StoppedGroups(file, lane, timeout_ms)
    by_key = "routing_key" in settings.lanes[lane].group_header
    if by_key and not stopped.may_be:
        raise CommandRefused(
            f"lanes.{lane}.group_header: the routing key is the group, and a released message would have "
            "another one; publish it again where it came from"
        )
    decision = Decision("released", limit, dry_run, stopped_only=by_key)
    _carry_out(settings, stopped, lane, wanted, decision, timeout_ms, as_json)


@app.command("drop")
@in_each_shard
def drop(
    lane: options.LaneName,
    group: GroupOption = None,
    reason: Reason = None,
    origin: Origin = None,
    everything: Everything = False,
    limit: First = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Delete messages: those at which groups have stopped (the groups go on), and those in the dead queue.
    They are gone. `--all` asks first."""
    settings = options.load_settings(file)
    wanted = _wanted(group, reason, origin, everything=everything)
    if everything and not (yes or dry_run):
        typer.confirm(f"Delete everything that lane {lane} has given up?", abort=True, err=True)
    decision = Decision("dropped", limit, dry_run)
    _carry_out(settings, StoppedGroups(file, lane, timeout_ms), lane, wanted, decision, timeout_ms, as_json)


@app.command("skip")
@in_each_shard
def skip(
    lane: options.LaneName,
    group: GroupOption = None,
    reason: Reason = None,
    origin: Origin = None,
    everything: Everything = False,
    limit: First = None,
    dry_run: DryRun = False,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Send the messages at which groups have stopped to the dead queue; the groups go on behind them."""
    stopped = StoppedGroups(file, lane, timeout_ms)
    if not stopped.may_be:
        raise CommandRefused(
            f"lanes.{lane}.retry.on_exhausted is not stop: no group stops, failed messages are skipped"
        )
    wanted = _wanted(group, reason, origin, everything=everything)
    count = stopped.decide("skip", wanted, limit, dry_run=dry_run)
    _refuse_if_none(wanted, count)
    would = "would be " if dry_run else ""
    text = f"{counted(count, 'stopped group')} {would}released behind the failed message"
    print_result({"lane": lane, "groups": count, "applied": not dry_run}, text, as_json=as_json)


def _selection(group: str | None, reason: str | None, origin: str | None = None) -> Selection:
    return Selection(parse_group(group) if group is not None else None, reason, origin)


def _wanted(group: str | None, reason: str | None, origin: str | None, *, everything: bool) -> Selection:
    if everything == (group is not None or reason is not None or origin is not None):
        raise typer.BadParameter("say which ones, with --group, --reason or --origin, or else --all")
    return _selection(group, reason, origin)


def _refuse_if_none(wanted: Selection, found: int) -> None:
    """A group or a message that was named must have a message in the dead queue."""
    if not found and wanted.named is not None:
        text = f"the dead queue has nothing of {wanted.named}; `dispatcher dead list` shows what it has"
        raise CommandRefused(text)


def _carry_out(
    settings: Settings, stopped: StoppedGroups, lane: str, wanted: Selection, decision: Decision,
    timeout_ms: int, as_json: bool,
) -> None:  # fmt: skip
    """First for the groups that have stopped, then for what the dead queue holds; and say how many."""
    verdict = "release" if decision.releases else "drop"
    groups = stopped.decide(verdict, wanted, decision.limit, dry_run=decision.dry_run)
    left = None if decision.limit is None else decision.limit - groups
    result: dict[str, Any] = {"lane": lane, decision.verb: 0, "skipped": 0, "applied": not decision.dry_run}
    if left != 0 and not decision.stopped_only:
        result = asyncio.run(_decide(settings, lane, wanted, replace(decision, limit=left), timeout_ms))
    if stopped.may_be:
        result["groups"] = groups
    _refuse_if_none(wanted, groups + result[decision.verb] + result["skipped"])
    _tell(result, decision, as_json=as_json)


def _tell(result: dict[str, Any], decision: Decision, *, as_json: bool) -> None:
    would = "would be " if decision.dry_run else ""
    text = f"{counted(result[decision.verb], 'message')} {would}{decision.verb}"
    if "groups" in result:
        text = (
            f"{counted(result['groups'], 'stopped group')} {would}{decision.verb}; {text} from the dead queue"
        )
    if result["skipped"]:
        text += f"; {counted(result['skipped'], 'message')} of no inbound queue left"
    print_result(result, text, as_json=as_json)


async def _list(
    settings: Settings, lane: str, selection: Selection, offset: int, limit: int, timeout_ms: int, *,
    whole: bool = False,
) -> dict[str, Any]:  # fmt: skip
    names = options.lane_names(settings, lane)
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    end = offset + limit
    matching = read = 0
    async with DeadQueue.opened(settings.rabbitmq, names, timeout_ms) as queue:
        with progress("read", queue.count) as advance:
            async for message in queue.messages(end if selection == Selection() else None):
                advance()
                read += 1
                if not selection.has(message) or _is_repeated(message, seen):
                    continue
                matching += 1
                if matching > offset:
                    rows.append(message.row() | (message.content() if whole else {}))
                if matching == end:
                    break
        return {"lane": lane, "messages": rows, "more": read < queue.count, "in_queue": queue.count}


def _is_repeated(message: DeadMessage, seen: set[str]) -> bool:
    """A crash may have stored it twice, with the same origin."""
    if message.origin is None:
        return False
    repeated = message.origin in seen
    seen.add(message.origin)
    return repeated


async def _decide(
    settings: Settings, lane: str, wanted: Selection, decision: Decision, timeout_ms: int
) -> dict[str, Any]:
    """Carry a decision out for everything wanted. Raises BrokerUnavailable, saying how far it came."""
    names = options.lane_names(settings, lane)
    seen: set[str] = set()
    repeated: list[DeadMessage] = []
    decided = skipped = 0
    async with DeadQueue.opened(settings.rabbitmq, names, timeout_ms) as queue:
        act = decision.act(queue)
        try:
            with progress(decision.verb, queue.count) as advance:
                async for message in queue.messages():
                    advance()
                    if not wanted.has(message):
                        continue
                    if decision.releases and message.inbound is None:
                        skipped += 1
                    elif _is_repeated(message, seen):
                        repeated.append(message)
                    else:
                        decided += 1
                        await act(message)
                    if decided == decision.limit:
                        break
                await queue.finish()
                if not decision.dry_run:
                    for message in repeated:  # now that the first ones have arrived
                        await queue.drop(message)
        except BrokerUnavailable as problem:
            done = queue.released if decision.releases else decided
            raise BrokerUnavailable(f"{problem}; {counted(done, 'message')} {decision.verb} before") from None
    return {"lane": lane, decision.verb: decided, "skipped": skipped, "applied": not decision.dry_run}
