"""A lane with shards: each is judged as a lane of its own, with the messages of the groups that RabbitMQ
leads there. A group that was in two shards is found in the wrong one, whatever its order was in each."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from pamqp import commands

from dispatcher.judge.judge import say
from dispatcher.judge.record import UNGROUPED, HandlingRecord
from dispatcher.wire.shards import ShardNames, shard_number
from tests.chaos.evidence import written
from tests.chaos.lanes import LaneOnStage
from tests.chaos.stage import Stage
from tests.service.clients import Client


async def find_shards(stage: Stage, client: Client) -> None:
    """Ask RabbitMQ, now that all has ended, where each group belongs that somebody has sent."""
    shards = [lane for lane in stage.lanes if lane.shards > 1]
    if not shards:
        return
    key, names = f"where-{uuid.uuid4().hex}", ShardNames(shards[0].whole)
    queues = {f"{key}.{lane.name}": lane.name for lane in shards}
    for queue, lane in queues.items():
        await client.declare(queue)
        entrance = names.entrance(shard_number(lane) or 0)
        bind = commands.Queue.Bind(queue=queue, exchange=entrance, routing_key=key)
        await client.link.call(client.channel, bind)
    for group in sorted({message.group for message in written(stage, shards[0]).sent}):
        header = None if group == UNGROUPED else group
        client.send(key, group.encode(), header, exchange=names.exchange)
    await client.confirmed()
    for queue, lane in queues.items():
        stage.shard_of |= {message.body.decode(): lane for message in await client.take(queue)}
        await client.delete(queue)


def elsewhere(
    shard_of: Mapping[str, str], lane: LaneOnStage, handlings: Iterable[HandlingRecord]
) -> list[str]:
    """What was handled in another shard than the one where its group belongs."""
    if lane.shards == 1:
        return []
    return [
        f"in {lane.name}, but its group belongs to {shard_of.get(handling.message.group)}: {say(handling)}"
        for handling in handlings if shard_of.get(handling.message.group) != lane.name
    ]  # fmt: skip
