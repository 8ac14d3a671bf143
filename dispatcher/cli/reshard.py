"""`dispatcher lane reshard`: another number of shards, while the dispatchers run."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from dispatcher.amqp.link import Link
from dispatcher.cli import options
from dispatcher.cli.command_client import ask
from dispatcher.cli.output import counted, print_result
from dispatcher.cli.rabbitmq import connected, look_at_queue
from dispatcher.errors import CommandRefused, NoAnswer
from dispatcher.service.shards import change_shards
from dispatcher.settings import LaneSettings, Settings
from dispatcher.settings.units import format_duration
from dispatcher.wire.shards import SHARDS_MAX, ShardNames, shard_name

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
    wanted = settings.lanes[known[0]].model_copy(update={"shards": shards})
    _refuse_unled(settings, lane, shards, timeout_ms)
    changed = asyncio.run(_change(settings, lane, wanted, timeout_ms))
    text = f"{lane}: groups go to {counted(shards, 'shard')}{'' if changed else ' already'}"
    print_result({"lane": lane, "shards": shards, "changed": changed}, text, as_json=as_json)


def _refuse_unled(settings: Settings, lane: str, shards: int, timeout_ms: int) -> None:
    """Raises CommandRefused or NoAnswer if nobody would hand out what goes to a shard."""
    names = ShardNames(lane, settings.prefix)
    with connected(settings.rabbitmq, "status") as connection:
        for number in range(1, shards + 1):
            ask(connection, names.shard(number), "status", {}, timeout_ms=timeout_ms)


async def _change(settings: Settings, lane: str, wanted: LaneSettings, timeout_ms: int) -> bool:
    link = await Link.open(settings.rabbitmq, name="dispatcher lane reshard", on_events=lambda _: None)
    left: list[str] = []

    async def remains(numbers: list[int]) -> list[str]:
        left[:] = await asyncio.to_thread(_remains, settings, wanted, lane, numbers, timeout_ms)
        return left

    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            return await change_shards(link, wanted, settings.prefix, remains)
    except TimeoutError:
        raise CommandRefused(
            f"not empty within {format_duration(timeout_ms)}, so nothing changed: {'; '.join(left)}"
        ) from None
    finally:
        await link.close()


def _remains(
    settings: Settings, wanted: LaneSettings, lane: str, numbers: list[int], timeout_ms: int
) -> list[str]:
    """What is left in these shards. Queues are looked at first: what left them is with a leader then."""
    names, found = ShardNames(lane, settings.prefix), []
    inbound = [each.queue.removesuffix(shard_name("", 1)) for each in wanted.inbound]
    with connected(settings.rabbitmq, "status") as connection:
        for number in numbers:
            queues = [shard_name(queue, number) for queue in inbound]
            found += [f"messages in {queue}" for queue in queues if look_at_queue(connection, queue).ready]
            of_shard = names.shard(number)
            if look_at_queue(connection, of_shard.lock).consumers:
                try:
                    found += _of_status(ask(connection, of_shard, "status", {}, timeout_ms=timeout_ms))
                except NoAnswer as problem:
                    found.append(str(problem))
    return found


def _of_status(status: dict[str, Any]) -> list[str]:
    counts = {key: int(status.get(key) or 0) for key in _COUNTS}
    counts["parked"] = sum(int(row.get("parked") or 0) for row in status.get("parking", []))
    counts["under way"] = int(status.get("operations") or 0)
    return [
        f"{status.get('lane')}: {count} {key.replace('_', ' ')}" for key, count in counts.items() if count
    ]
