"""`dispatcher lane remove`: what a lane has on RabbitMQ and in Redis, removed for good."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, NamedTuple

import typer
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker

from dispatcher.cli import options
from dispatcher.cli.output import console, counted, print_json
from dispatcher.cli.rabbitmq import connected, look_at_queue, refusal
from dispatcher.cli.reshard import reshard
from dispatcher.errors import ACCESS_REFUSED, ChannelRefused, CommandRefused
from dispatcher.redis_store.removal import look_at_lane, remove_keys
from dispatcher.service.topology import own_exchanges, possible_queues
from dispatcher.settings import Settings
from dispatcher.wire.protocol import RESERVED_SEGMENTS, LaneNames, dotted_name_problem
from dispatcher.wire.shards import SHARDS_MAX, ShardNames, shard_number, whole_name, without_number

app = typer.Typer(help="Take a lane out of service, or change its number of shards.", no_args_is_help=True)
app.command()(reshard)


@app.callback()
def _lane() -> None:
    pass


class _Remains(NamedTuple):
    """What there is of a lane; queues with the messages that are ready in them."""

    exchanges: list[str]
    queues: dict[str, int]
    keys: tuple[str, ...]
    inbound: dict[str, int]  # these stay

    def as_json(self) -> dict[str, Any]:
        return {
            "exchanges": self.exchanges,
            "queues": [{"queue": queue, "messages": count} for queue, count in self.queues.items()],
            "keys": list(self.keys),
            "inbound": [{"queue": queue, "messages": count} for queue, count in self.inbound.items()],
        }

    def lines(self) -> Iterator[str]:
        yield from (f"exchange   {exchange}" for exchange in self.exchanges)
        yield from (f"queue      {queue}: {counted(n, 'message')}" for queue, n in self.queues.items())
        yield from (f"Redis key  {key}" for key in self.keys)
        yield from (f"stays      {queue}: {counted(n, 'message')}" for queue, n in self.inbound.items())


@app.command("remove")
def remove(
    lane: Annotated[
        str, typer.Argument(metavar="LANE", help="Name of the lane; the configuration need not have it.")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also if messages wait; those in the lane's own queues are lost.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    file: options.ConfigFile = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
) -> None:
    """Remove a lane's exchanges, queues and Redis keys: lists them, and asks. Its inbound queues stay.

    Take the lane out of the configuration of every replica before, or stop them: while one leads the lane,
    this is refused; one that stands by would make everything again.
    """
    settings = options.load_settings(file)
    if problem := dotted_name_problem(without_number(lane), reserved=RESERVED_SEGMENTS):
        raise typer.BadParameter(problem, param_hint="LANE")
    if as_json and not (dry_run or yes):
        raise typer.BadParameter("needs --yes or --dry-run", param_hint="--json")
    with connected(settings.rabbitmq, "lane.remove") as connection:
        all_names = [
            *_shards_of(connection, ShardNames(lane, settings.prefix)),
            LaneNames(lane, settings.prefix),
        ]
        found = [(names, _look(connection, names, settings)) for names in all_names]
        if as_json:
            print_json(_as_json(found))
        else:
            for line in (line for _, remains in found for line in remains.lines()):
                console().print(line)
        if dry_run:
            return
        for names, remains in found:
            _refuse_beside_shards(connection, names, settings)
            _refuse(connection, names, remains, force=force)
        if not yes:
            typer.confirm(f"Remove all of this but what stays of lane {lane}?", abort=True, err=True)
        for names, remains in found:
            _remove(connection, names, settings, remains)
    if not as_json:
        console().print(f"{lane}: removed")


def _as_json(found: list[tuple[LaneNames, _Remains]]) -> dict[str, Any]:
    *shards, (_, of_lane) = found
    of_shards = {names.lane: remains.as_json() for names, remains in shards}
    return {**of_lane.as_json(), **({"shards": of_shards} if shards else {})}


def _shards_of(connection: BlockingConnection, way: ShardNames) -> list[LaneNames]:
    """Those that RabbitMQ has of a lane; they go before it."""
    if shard_number(way.lane) is not None:
        return []
    return [
        way.shard(number) for number in range(1, SHARDS_MAX + 1)
        if refusal(connection, partial(_find_exchange, exchange=way.entrance(number))) is None
    ]  # fmt: skip


def _look(connection: BlockingConnection, names: LaneNames, settings: Settings) -> _Remains:
    """Raises CommandRefused when there is nothing."""
    in_redis = asyncio.run(look_at_lane(settings.redis, settings.prefix, names.lane))
    configured = settings.lanes.get(names.lane)
    handed = [consumer.id for consumer in configured.consumers] if configured is not None else []
    wanted = [names.consumer(consumer) for consumer in handed]
    wanted += [queue for queue in in_redis.consumer_queues if queue.startswith(names.consumer(""))]
    wanted += possible_queues(names)
    inbound = [each.queue for each in configured.inbound] if configured is not None else []
    exchanges = [
        exchange for exchange in (*own_exchanges(names), *_of_all_shards(names))
        if refusal(connection, partial(_find_exchange, exchange=exchange)) is None
    ]  # fmt: skip
    remains = _Remains(
        exchanges, _found(connection, wanted), in_redis.keys,
        _found(connection, [*inbound, *in_redis.inbound]),
    )  # fmt: skip
    if not (remains.exchanges or remains.queues or remains.keys):
        raise CommandRefused(f"there is nothing of lane {names.lane} on RabbitMQ or in Redis")
    return remains


def _of_all_shards(names: LaneNames) -> tuple[str, ...]:
    """The exchanges that a lane has for all its shards together; a shard has none."""
    if shard_number(names.lane) is not None:
        return ()
    way = ShardNames(names.lane, names.prefix)
    return way.exchange, *way.kept


def _find_exchange(channel: BlockingChannel, exchange: str) -> None:
    channel.exchange_declare(exchange, passive=True)


def _found(connection: BlockingConnection, queues: list[str]) -> dict[str, int]:
    looks = {queue: look_at_queue(connection, queue) for queue in dict.fromkeys(queues)}
    for queue, look in looks.items():
        if look.refused is not None and not look.missing:
            raise CommandRefused(f"{queue} can't be looked into: {look.refused}")
    return {queue: look.ready or 0 for queue, look in looks.items() if not look.missing}


def _refuse(connection: BlockingConnection, names: LaneNames, remains: _Remains, *, force: bool) -> None:
    """Raises CommandRefused when that is no time to remove the lane."""
    if look_at_queue(connection, names.lock).consumers:
        raise _is_led(names)
    ours = {names.control, names.command, names.heartbeat, names.witness, names.lock}  # no application's
    waiting = {queue: n for queue, n in {**remains.queues, **remains.inbound}.items() if queue not in ours}
    lines = [f"{counted(n, 'message')} in {queue}" for queue, n in waiting.items() if n]
    if lines and not force:
        raise CommandRefused(
            f"{', '.join(lines)}: let the lane empty them first, or say --force (what is in queues that stay "
            "is not lost)"
        )


def _refuse_beside_shards(connection: BlockingConnection, names: LaneNames, settings: Settings) -> None:
    """Raises CommandRefused for a shard while others of its number are led, without which groups would have
    other shards."""
    if shard_number(names.lane) is None:
        return
    configured = options.shards_of(settings, whole_name(names.lane))
    for each in configured if names.lane in configured else ():
        if look_at_queue(connection, (other := LaneNames(each, names.prefix)).lock).consumers:
            raise _is_led(other)


def _is_led(names: LaneNames) -> CommandRefused:
    return CommandRefused(
        f"a dispatcher leads lane {names.lane}: take the lane out of the configuration of every replica, or "
        "stop them"
    )


def _remove(connection: BlockingConnection, names: LaneNames, settings: Settings, remains: _Remains) -> None:
    """Holds the lane's lock meanwhile, so that no dispatcher leads it. Raises CommandRefused when one does,
    ChannelRefused when the user may not delete something."""
    channel = connection.channel()
    try:
        if names.lock in remains.queues:
            channel.basic_consume(names.lock, lambda *_: None, exclusive=True)
        for exchange in remains.exchanges:
            channel.exchange_delete(exchange)
        for queue in remains.queues:
            if queue != names.lock:
                channel.queue_delete(queue)
        asyncio.run(remove_keys(settings.redis, remains.keys))
        channel.queue_delete(names.lock)
    except ChannelClosedByBroker as error:
        if error.reply_code == ACCESS_REFUSED and "exclusive" in error.reply_text:
            raise _is_led(names) from None
        raise ChannelRefused(error.reply_code, error.reply_text) from None
