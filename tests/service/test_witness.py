"""The witness message: whether the broker was restarted is known until nobody needs to know it any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pamqp import base, commands

from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import QueueDeclare
from dispatcher.core.effects import Snapshot
from dispatcher.core.events import RedeliveriesEnded
from dispatcher.core.lane import Lane
from dispatcher.core.options import LaneOptions, policy
from dispatcher.errors import ChannelRefused
from dispatcher.service.topology import declare_lane, prepare_inbound
from dispatcher.service.witness import Witness
from dispatcher.settings import InboundSettings, LaneSettings, QueueKind, RabbitSettings
from dispatcher.wire.protocol import LaneNames
from tests.conftest import Vhost
from tests.waiting import eventually

NAMES = LaneNames("orders")
NOW_MS = 1_750_000_000_000


@asynccontextmanager
async def connected(vhost: Vhost, kind: QueueKind = QueueKind.CLASSIC) -> AsyncIterator[Link]:
    link = await Link.open(RabbitSettings(url=vhost.amqp_url), name="witness", on_events=lambda _: None)
    try:
        lane = LaneSettings(
            name="orders", queue_type=kind, inbound=(InboundSettings(queue="in", declare=True),)
        )
        await prepare_inbound(link, lane)
        await declare_lane(link, NAMES, lane, [False])
        yield link
    finally:
        await link.close()


async def test_a_message_of_a_producer_is_no_witness(vhost: Vhost) -> None:
    """It reaches the queue by its name, and would hide that RabbitMQ was restarted."""
    async with connected(vhost) as link:
        channel = await link.open_channel()
        await link.call(channel, commands.Confirm.Select())
        link.publish(channel, exchange="", routing_key=NAMES.witness, properties=bytes(2), body=b"")
        await eventually(lambda: laid_down(link, channel))
        assert await Witness(link, NAMES).is_gone()
        link.publish(
            channel, exchange=NAMES.exchange, routing_key=NAMES.witness, properties=bytes(2), body=b""
        )
        await eventually(lambda: laid_down(link, channel))
        assert not await Witness(link, NAMES).is_gone()


async def laid_down(link: Link, channel: int) -> int:
    """Witness messages; all that was published on this connection before has been routed."""
    declared = await link.call(channel, QueueDeclare(queue=NAMES.witness, passive=True))
    return int(declared.message_count)


async def test_a_restart_is_forgotten_only_when_redis_has_what_was_decided_because_of_it(
    vhost: Vhost,
) -> None:
    """Redis failed in that moment: the next leader took a settled original, whose ack the killed broker had
    forgotten, for a new one."""
    async with connected(vhost) as link:
        witness = Witness(link, NAMES)
        assert await witness.is_gone()
        options = LaneOptions(policy=policy("exclusive"), inbounds=(("orders", 1),))
        lane = Lane(options, Snapshot(lane_epoch=1, complete=True, broker_restarted=True), NOW_MS)
        lane.start(NOW_MS)
        witness.watch(lane)
        lane.step([RedeliveriesEnded(0)], NOW_MS)
        asked, committed = asyncio.Event(), asyncio.Event()

        async def decided_is_done() -> None:
            asked.set()
            await committed.wait()

        renewing = asyncio.create_task(witness.renew_after_recovery(decided_is_done))
        await asked.wait()
        assert await laid_down(link, witness._channel) == 0
        committed.set()
        await renewing
        await eventually(lambda: laid_down(link, witness._channel))
        assert not await Witness(link, NAMES).is_gone()


def recovered() -> Lane:
    """A lane whose recovery is through."""
    options = LaneOptions(policy=policy("exclusive"), inbounds=(("orders", 1),))
    lane = Lane(options, Snapshot(lane_epoch=1, complete=True, broker_restarted=True), NOW_MS)
    lane.start(NOW_MS)
    lane.step([RedeliveriesEnded(0)], NOW_MS)
    return lane


async def at_once() -> None:
    """Redis has what was decided."""


class Away:
    """A link to a cluster in which the node of the witness is away."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.away, self.deletes = True, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def call(self, channel: int, method: base.Frame) -> Any:
        self.deletes += isinstance(method, commands.Queue.Delete)
        if self.away and isinstance(method, commands.Basic.Get):
            return asyncio.get_running_loop().create_future()  # as RabbitMQ 4.0, which answers in a minute
        if self.away and isinstance(method, commands.Queue.Delete):
            raise ChannelRefused(404, "NOT_FOUND - home node is down or inaccessible")
        return self._link.call(channel, method)


class Impatient(Witness):
    answer_s, away_s = 0.1, 0.01


async def test_one_whose_node_is_away_is_gone_until_it_can_be_declared(vhost: Vhost) -> None:
    async with connected(vhost, QueueKind.QUORUM) as link:
        before = Witness(link, NAMES, moves=True)
        assert await before.is_gone()
        before.watch(recovered())
        await before.renew_after_recovery(at_once)
        await eventually(lambda: laid_down(link, before._channel))
        away = Away(link)
        witness = Impatient(away, NAMES, moves=True)  # type: ignore[arg-type]
        assert await witness.is_gone()
        witness.watch(recovered())
        renewing = asyncio.create_task(witness.renew_after_recovery(at_once))
        await eventually(lambda: away.deletes > 2, what="it tries again and again")
        assert not renewing.done()
        away.away = False
        await renewing
        await eventually(lambda: laid_down(link, witness._channel))
        assert not await Witness(link, NAMES, moves=True).is_gone()


async def test_one_that_moves_along_is_not_there_until_it_is_declared(vhost: Vhost) -> None:
    """RabbitMQ 4 may refuse transient queues that are not exclusive."""
    async with connected(vhost, QueueKind.QUORUM) as link:
        witness = Witness(link, NAMES, moves=True)
        assert await witness.is_gone()
        witness.watch(recovered())
        witness.ghosts = 1
        await witness.renew_after_recovery(at_once)
        (queue,) = (q for q in vhost.management(f"queues/{vhost.name}") if q["name"] == NAMES.witness)
        assert queue["durable"]
        following = Witness(link, NAMES, moves=True)
        await eventually(lambda: laid_down(link, witness._channel))
        assert not await following.is_gone()
        assert following.ghosts == 1
