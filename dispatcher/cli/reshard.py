"""`dispatcher lane reshard`: another number of shards, while the dispatchers run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from dispatcher.amqp.link import Link
from dispatcher.cli import options
from dispatcher.cli.command_client import ask
from dispatcher.cli.output import counted, print_result
from dispatcher.cli.rabbitmq import OperatorConnection, connected
from dispatcher.errors import CommandRefused, NoAnswer
from dispatcher.service.shards import change_shards
from dispatcher.settings import LaneSettings, Settings
from dispatcher.wire.protocol import LaneNames
from dispatcher.wire.shards import SHARDS_MAX, ShardNames

#: Counts in a status that are 0 in a shard in which nothing is left.
_COUNTS = ("held", "in_flight", "unconfirmed")


def reshard(
    lane: options.LaneName,
    shards: Annotated[
        int, typer.Option(min=2, max=SHARDS_MAX, help="How many there are to be; each must be led already.")
    ],
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
    timeout_ms: options.Timeout = options.DEFAULT_TIMEOUT_MS,
) -> None:
    """Let a lane's groups go to more or fewer shards, in order, while dispatchers and consumers go on.

    RabbitMQ refuses what producers publish until everything that is in the shards is settled. If that takes
    longer than `--timeout`, nothing changes.
    """
    settings = options.load_settings(file)
    known = options.shards_of(settings, lane)
    if not known:
        raise CommandRefused(f"lane {lane} has no shards in the configuration")
    names = ShardNames(lane, settings.prefix)
    wanted = settings.lanes[known[0]].model_copy(update={"shards": shards})
    with connected(settings.rabbitmq, "status") as connection:
        for number in range(1, shards + 1):  # a shard that nobody leads would keep its groups waiting
            ask(connection, names.shard(number), "status", {}, timeout_ms=timeout_ms)
        changed = asyncio.run(_change(settings, wanted, partial(_held, connection, timeout_ms), timeout_ms))
    text = f"{lane}: groups go to {counted(shards, 'shard')}{'' if changed else ' already'}"
    print_result({"lane": lane, "shards": shards, "changed": changed}, text, as_json=as_json)


async def _change(
    settings: Settings, wanted: LaneSettings, held: Callable[[LaneNames], list[str]], timeout_ms: int
) -> bool:
    async def opened() -> Link:
        return await Link.open(settings.rabbitmq, name="dispatcher lane reshard", on_events=lambda _: None)

    async def ask_leader(names: LaneNames) -> list[str]:
        return await asyncio.to_thread(held, names)

    link = await opened()
    try:
        return await change_shards(
            link, wanted, settings.prefix, ask_leader, timeout_ms=timeout_ms, anew=opened
        )
    finally:
        await link.close()


def _held(connection: OperatorConnection, timeout_ms: int, names: LaneNames) -> list[str]:
    """What the leader of this shard has, in words."""
    try:
        status = ask(connection, names, "status", {}, timeout_ms=timeout_ms)
    except (CommandRefused, NoAnswer) as problem:
        return [str(problem)]
    counts = {key: int(status.get(key) or 0) for key in _COUNTS}
    counts["parked"] = sum(int(row.get("parked") or 0) for row in status.get("parking", []))
    counts["under way"] = int(status.get("operations") or 0)
    return [f"{names.lane}: {count} {key.replace('_', ' ')}" for key, count in counts.items() if count]
