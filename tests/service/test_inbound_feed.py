"""An inbound queue whose settled originals can't be acked yet: another consumer gets what is behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pamqp import commands

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.link import Link
from dispatcher.core.effects import Snapshot
from dispatcher.core.lane import Lane
from dispatcher.core.model import Consumer
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.tables import IncarnationRow
from dispatcher.service.inbound_feed import (
    FIRST_WINDOW,
    RENEWED_FOR,
    UNACKED_WINDOWS,
    InboundFeed,
    open_inbound,
)
from tests.service.clients import Client
from tests.service.harness import Bench
from tests.waiting import eventually

WINDOW = 2 * RENEWED_FOR
STORED = 5 * WINDOW


class Fed:
    """A feed of a queue of numbered messages, and what it brought."""

    def __init__(self, feed: InboundFeed, link: Link, channel: int, bodies: list[bytes]) -> None:
        self.feed = feed
        self.link = link
        self.channel = channel
        self.bodies = bodies
        self.settled = 1  # the first one never is

    async def settle_all_but_the_first(self) -> None:
        """Settle what has come, in a lane where somebody is idle, without time passing."""
        while self.settled < len(self.bodies):
            self.settled += 1
            self.feed.settle(self.settled)
        self.feed.flush_acks(0)
        await asyncio.sleep(0)

    async def has(self, count: int) -> None:
        async def came() -> bool:
            await self.settle_all_but_the_first()
            return len(self.bodies) >= count

        await eventually(came, what=f"{count} deliveries")

    async def all_sent(self) -> int:
        """How many deliveries there are when all that RabbitMQ has sent is here."""
        await self.link.call(self.channel, commands.Basic.Qos(prefetch_count=1))
        return len(self.bodies)


@asynccontextmanager
async def _fed(bench: Bench, client: Client, **arguments: Any) -> AsyncIterator[Fed]:
    await client.declare("in", **arguments)
    for number in range(STORED):
        client.send("in", b"%d" % number)
    await client.confirmed()
    options = LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),), look_ahead=WINDOW)
    lane = Lane(options, Snapshot(lane_epoch=1, complete=True, broker_restarted=False), 0)
    (inbound,) = lane.state.inbounds
    inbound.recovery = None
    row = IncarnationRow("idle", "uuid", "queue", 1, 10, "live")
    lane.state.pool.add(Consumer(1, row, inbounds=1, first_seq=1, now_ms=0))
    bodies: list[bytes] = []
    feeds: list[InboundFeed] = []

    def receive(events: list[Any]) -> None:
        new = [event.body for event in events if isinstance(event, Delivery)]
        bodies.extend(new)
        if feeds:
            feeds[0].delivered(len(new))

    link = await Link.open(bench.rabbitmq, name="test", on_events=receive)
    try:
        source = await open_inbound(link, "in", "feed", WINDOW, election_s=0)
        feeds.append(InboundFeed(link, source, inbound, report=lambda _: None))
        feeds[0].delivered(len(bodies))
        feeds[0].set_window(WINDOW)
        keeping = asyncio.create_task(feeds[0].keep_window())
        try:
            yield Fed(feeds[0], link, source.channel, bodies)
        finally:
            keeping.cancel()
    finally:
        await link.close()


async def test_what_is_settled_behind_a_stuck_one_takes_no_room(bench: Bench) -> None:
    client = await bench.client()
    async with _fed(bench, client) as fed:
        await fed.has(UNACKED_WINDOWS * WINDOW)
        assert fed.bodies == [b"%d" % number for number in range(len(fed.bodies))]
        unacked = len(fed.bodies) - 1
        assert unacked < (UNACKED_WINDOWS + 1) * WINDOW < STORED, "a new leader gets all of them again"
        assert fed.feed.settled_unacked(700) == (fed.settled - 1, 700)
        fed.feed.settle(1)
        fed.feed.flush_acks(0)
        await fed.has(STORED)
        await fed.settle_all_but_the_first()  # what came last
        await fed.link.call(fed.channel, commands.Channel.Close(200, "done", 0, 0))
        assert fed.bodies == [b"%d" % number for number in range(STORED)]
    assert await client.ready("in") == 0


async def test_what_is_unsettled_takes_its_room(bench: Bench) -> None:
    """The look-ahead stays what it is, whatever else could be fetched."""
    client = await bench.client()
    async with _fed(bench, client) as fed:
        first = WINDOW + FIRST_WINDOW
        await eventually(lambda: len(fed.bodies) >= first, what="the first window")
        for tag in range(WINDOW - RENEWED_FOR + 1, first + 1):
            fed.feed.settle(tag)
        fed.feed.flush_acks(0)
        await eventually(lambda: len(fed.bodies) >= first + RENEWED_FOR, what="as many as are settled")
        fed.feed.flush_acks(0)
        assert await fed.all_sent() == first + RENEWED_FOR


async def test_a_consumer_of_a_quorum_queue_is_not_replaced(bench: Bench) -> None:
    """What it had would come back behind what is newer. Its acks are what gives room."""
    client = await bench.client()
    async with _fed(bench, client, x_queue_type="quorum") as fed:
        await eventually(lambda: len(fed.bodies) >= WINDOW, what="the first window")
        await fed.settle_all_but_the_first()
        assert await fed.all_sent() == WINDOW
        fed.feed.flush_acks(1_000)
        await eventually(lambda: len(fed.bodies) > WINDOW, what="what the acks gave room for")
