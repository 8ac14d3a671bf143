"""`dispatcher replay`: sends messages of the history once more."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import typer

from dispatcher.cli import options
from dispatcher.cli.history import HistoryReader
from dispatcher.cli.output import counted, print_result
from dispatcher.cli.progress import progress
from dispatcher.cli.shards import in_each_shard
from dispatcher.errors import BrokerUnavailable, CommandRefused
from dispatcher.settings import Settings
from dispatcher.wire.group_text import parse_group
from dispatcher.wire.protocol import LaneNames


def parse_since_ms(text: str) -> int:
    """Milliseconds since 1970; for the option. Raises typer.BadParameter."""
    since_ms = options.parse_instant_us(text) // 1_000
    if since_ms > time.time() * 1_000:
        raise typer.BadParameter("is in the future")
    return since_ms


@in_each_shard
def replay(
    lane: options.LaneName,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Only this group; %xx stands for one byte.")
    ] = None,
    since_ms: Annotated[
        int | None,
        typer.Option(
            "--since",
            parser=parse_since_ms,
            metavar="TIME",
            help=f"Only messages that came in since then: {options.TIME_HELP}.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything that the history still has.")] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            callback=options.short_string,
            metavar="QUEUE",
            help="Into this queue, instead of where each came in.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Send the messages that the lane's history still has once more, in their order.

    Each message is marked by the header `x-dispatch-replay`: when it arrived first, in ms since 1970. It goes
    to the end of its inbound queue.
    """  # fmt: skip
    if everything == (group is not None or since_ms is not None):
        raise typer.BadParameter("say which ones, with --group or --since, or else --all")
    settings = options.load_settings(file)
    names = options.lane_names(settings, lane)
    if settings.lanes[lane].history is None:
        raise CommandRefused(f"lanes.{lane}.history is not set: the lane keeps no messages")
    if to is None and "routing_key" in settings.lanes[lane].group_header:
        raise CommandRefused(
            f"lanes.{lane}.group_header: the routing key is the group, and a replayed message would have "
            "another one; send it elsewhere with --to"
        )
    if to is not None and to.startswith(f"{settings.prefix}."):
        raise CommandRefused(f"--to: {to!r} is the dispatcher's own; name one of yours")
    wanted = parse_group(group) if group is not None else None
    result = asyncio.run(_replay(settings, names, wanted, since_ms or 0, to, dry_run, timeout_ms))
    would = "would be " if dry_run else ""
    left_out = f", {result['repeated']:,} left out that it has twice" if result["repeated"] else ""
    text = f"{counted(result['messages'], 'message')} {would}sent again{left_out}"
    print_result(result, text, as_json=as_json)


async def _replay(
    settings: Settings, names: LaneNames, group: bytes | None, since_ms: int, to: str | None, dry_run: bool,
    timeout_ms: int,
) -> dict[str, Any]:  # fmt: skip
    sent = 0
    async with HistoryReader.opened(settings.rabbitmq, names, timeout_ms) as history:
        with progress("replay", await history.begin(since_ms)) as advance:
            try:
                async for message in history.messages(since_ms, advance):
                    if group is not None and message.group != group:
                        continue
                    if not dry_run:
                        await history.publish(message, to)
                    sent += 1
                await history.finish()
            except BrokerUnavailable as failure:
                raise BrokerUnavailable(f"{failure}; {history.progress}") from None
        return {
            "lane": names.lane, "messages": sent, "repeated": history.repeated, "applied": not dry_run,
        }  # fmt: skip
