"""Reading a parking queue: everything that is in it, its end, and no requests that find nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from pamqp import commands

from dispatcher.amqp.events import Fetched
from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import QueueDeclare
from dispatcher.core.model import Original
from dispatcher.core.parking.events import ParkingQueueDeleted
from dispatcher.core.parking.orders import DeleteParkingQueue
from dispatcher.core.queue_ids import FIRST_INBOUND, parking_id
from dispatcher.errors import ChannelRefused
from dispatcher.service.channels import Channels
from dispatcher.service.parking_feeds import (
    EMPTY_LOOKS,
    TAKEN_BACK_S,
    ParkingFeed,
    ParkingFeeds,
)
from dispatcher.settings import RabbitSettings
from dispatcher.wire.protocol import LaneNames
from tests.conftest import Vhost
from tests.waiting import eventually

QUEUE = "parked"
STORED = 25
MANY = 400


class Counted:
    """A link that counts the requests for a message."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.gets = 0

    def call(self, channel: int, method: Any) -> Any:
        self.gets += isinstance(method, commands.Basic.Get)
        return self.link.call(channel, method)


class LateLeader:
    """A link to a quorum queue that has no leader at most looks: RabbitMQ counts nothing then. What is given
    back comes to the second leader that is found."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._looks = 0
        self._late: list[tuple[int, Any]] = []

    def send(self, channel: int, method: Any) -> None:
        self._late.append((channel, method))

    async def call(self, channel: int, method: Any) -> Any:
        if isinstance(method, QueueDeclare):
            self._looks += 1
            leaders, rest = divmod(self._looks, EMPTY_LOOKS * 2 // 3)
            if rest:
                return commands.Queue.DeclareOk(QUEUE, 0, 0)
            while leaders > 1 and self._late:
                self._link.send(*self._late.pop(0))
        return await self._link.call(channel, method)


def _feed(link: Link, channel: int, *, quorum: bool = True) -> ParkingFeed:
    return ParkingFeed(link, QUEUE, channel, _originals, quorum=quorum)


def _originals(fetched: list[Fetched]) -> list[Original]:
    """Each body is another one."""
    return [
        Original(
            FIRST_INBOUND, one.tag, (1, one.tag), one.body.ljust(16), None, one, len(one.body), 0,
            one.redelivered,
        )
        for one in fetched
    ]  # fmt: skip


def _publish(link: Link, channel: int, body: bytes) -> None:
    properties = commands.Basic.Properties().marshal()
    link.publish(channel, exchange="", routing_key=QUEUE, properties=properties, body=body)


async def _fetch(feed: ParkingFeed, limit: int) -> tuple[list[Fetched], bool]:
    messages, is_end = await feed.fetch(limit)
    return [message.content for message in messages], is_end


async def test_a_read_asks_for_what_is_there_and_one_more_to_find_the_end(vhost: Vhost) -> None:
    """A hundred requests for the last message of a queue cost as much as a hundred messages."""
    link = await Link.open(RabbitSettings(url=vhost.amqp_url), name="parking", on_events=lambda _: None)
    try:
        channel = await link.open_channel()
        await link.call(channel, QueueDeclare(queue=QUEUE, durable=True))
        for number in range(STORED):
            _publish(link, channel, b"%d" % number)

        async def stored() -> bool:
            declared = await link.call(channel, QueueDeclare(queue=QUEUE, passive=True))
            return int(declared.message_count) == STORED

        await eventually(stored, what="all are in the queue")
        counted: Any = Counted(link)
        feed = _feed(counted, channel, quorum=False)
        first, is_end = await _fetch(feed, 10)
        assert [message.body for message in first] == [b"%d" % number for number in range(10)]
        assert not is_end
        rest, is_end = await _fetch(feed, 100)
        assert [message.body for message in rest] == [b"%d" % number for number in range(10, STORED)]
        assert is_end
        assert counted.gets == STORED + 1
        assert await _fetch(feed, 100) == ([], True)
        assert counted.gets == STORED + 2
    finally:
        await link.close()


@asynccontextmanager
async def _quorum_queue(
    vhost: Vhost, stored: int = STORED
) -> AsyncIterator[tuple[Link, Callable[[int], Awaitable[bool]]]]:
    """A link, and whether so many of the stored messages are ready."""
    link = await Link.open(RabbitSettings(url=vhost.amqp_url), name="parking", on_events=lambda _: None)
    try:
        channel = await link.open_channel()
        parked = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000}
        await link.call(channel, QueueDeclare(queue=QUEUE, durable=True, arguments=parked))
        await link.call(channel, commands.Confirm.Select())
        for number in range(stored):
            _publish(link, channel, b"%d" % number)

        async def ready(count: int) -> bool:
            declared = await link.call(channel, QueueDeclare(queue=QUEUE, passive=True))
            return int(declared.message_count) == count

        await eventually(lambda: ready(stored), what="all are in the queue")
        yield link, ready
    finally:
        await link.close()


async def _after_a_former(link: Link, ready: Callable[[int], Awaitable[bool]], had: int) -> ParkingFeed:
    """A feed whose queue got back what a former reader had."""
    former = await link.open_channel()
    await _feed(link, former).fetch(had)
    await link.call(former, commands.Channel.Close(200, "dead", 0, 0))
    await eventually(lambda: ready(STORED), what="all of it is back")
    return _feed(link, await link.open_channel())


async def test_what_a_quorum_queue_got_back_is_read_together(vhost: Vhost) -> None:
    """It hands that out in any order, and before the rest."""
    async with _quorum_queue(vhost) as (link, ready):
        feed = await _after_a_former(link, ready, 20)
        fetched, is_end = await _fetch(feed, 2)
        again = [int(message.body) for message in fetched if message.redelivered]
        assert sorted(again) == list(range(20))
        assert [int(message.body) for message in fetched[20:]] == list(range(20, len(fetched)))
        assert not is_end
        for message in fetched:
            assert not await feed.delete_empty()
            feed.settle(message.tag)
        feed.flush_acks(0, everything=True)
        assert not await feed.delete_empty()
        rest, is_end = await _fetch(feed, STORED)
        assert [int(message.body) for message in rest] == list(range(len(fetched), STORED))
        assert is_end
        for message in rest:
            feed.settle(message.tag)
        feed.flush_acks(0, everything=True)
        assert await feed.delete_empty()


async def test_what_a_quorum_queue_gets_back_is_read_with_the_rest(vhost: Vhost) -> None:
    """RabbitMQ answers requests for messages before it takes back more than 32 of them."""
    async with _quorum_queue(vhost, MANY) as (link, _):
        feed = _feed(link, await link.open_channel())
        fetched, _ = await _fetch(feed, 200)
        assert not any(message.redelivered for message in fetched)
        feed.give_back(tuple(message.tag for message in fetched))
        fetched, _ = await _fetch(feed, 100)
        again = [int(message.body) for message in fetched if message.redelivered]
        assert sorted(again) == list(range(200))  # in any order: who takes them sorts them
        new = [int(message.body) for message in fetched if not message.redelivered]
        assert new == list(range(200, len(fetched)))


async def test_what_others_have_is_not_taken_for_what_was_given_back(vhost: Vhost) -> None:
    """RabbitMQ counts both alike: a former leader's may go at any time, while ours have not come back yet."""
    async with _quorum_queue(vhost, MANY) as (link, _):
        former = _feed(link, await link.open_channel())
        had, _ = await _fetch(former, 150)
        feed = _feed(link, await link.open_channel())
        fetched, _ = await _fetch(feed, 150)
        feed.give_back(tuple(message.tag for message in fetched))
        former.give_back(tuple(message.tag for message in had))
        async with asyncio.timeout(TAKEN_BACK_S / 2):
            again, _ = await _fetch(feed, 1)
        assert {message.body for message in again} >= {message.body for message in fetched}


async def test_what_somebody_else_keeps_is_not_waited_for(vhost: Vhost) -> None:
    async with _quorum_queue(vhost) as (link, _):
        former = _feed(link, await link.open_channel())
        assert len((await _fetch(former, 2))[0]) == 2
        feed = _feed(link, await link.open_channel())
        fetched, _ = await _fetch(feed, 2)
        feed.give_back(tuple(message.tag for message in fetched))
        async with asyncio.timeout(TAKEN_BACK_S / 2):
            fetched, _ = await _fetch(feed, 2)
        assert sorted(int(message.body) for message in fetched[:2]) == [2, 3]


async def test_what_was_dropped_is_not_waited_for(vhost: Vhost) -> None:
    """An operator purges the queue, or a policy limits it."""
    async with _quorum_queue(vhost) as (link, ready):
        feed = _feed(link, await link.open_channel())
        fetched, _ = await _fetch(feed, 2)
        feed.give_back(tuple(message.tag for message in fetched))
        await eventually(lambda: ready(STORED), what="they are back")
        channel = await link.open_channel()
        await link.call(channel, commands.Queue.Purge(queue=QUEUE))
        _publish(link, channel, b"new")
        await eventually(lambda: ready(1), what="the next one is stored")
        async with asyncio.timeout(TAKEN_BACK_S / 2):
            fetched, is_end = await _fetch(feed, 2)
        assert [message.body for message in fetched] == [b"new"]
        assert is_end


async def test_a_queue_that_is_empty_now_is_not_waited_for(vhost: Vhost) -> None:
    """It counts nothing and nobody, as one without a leader does."""
    async with _quorum_queue(vhost) as (link, ready):
        feed = _feed(link, await link.open_channel())
        fetched, _ = await _fetch(feed, STORED)
        feed.give_back(tuple(message.tag for message in fetched))
        await eventually(lambda: ready(STORED), what="they are back")
        await link.call(await link.open_channel(), commands.Queue.Purge(queue=QUEUE))
        async with asyncio.timeout(TAKEN_BACK_S / 3):
            assert await _fetch(feed, 2) == ([], True)


async def test_a_queue_without_a_leader_is_not_taken_for_an_empty_one(vhost: Vhost) -> None:
    async with _quorum_queue(vhost, MANY) as (link, _):
        late: Any = LateLeader(link)
        feed = _feed(late, await link.open_channel())
        fetched, _ = await _fetch(feed, 200)
        feed.give_back(tuple(message.tag for message in fetched))
        fetched, _ = await _fetch(feed, 100)
        again = [int(message.body) for message in fetched if message.redelivered]
        assert sorted(again) == list(range(200))


async def test_a_queue_of_which_somebody_else_has_all_is_not_deleted(vhost: Vhost) -> None:
    async with _quorum_queue(vhost) as (link, ready):
        former = _feed(link, await link.open_channel())
        assert len((await _fetch(former, STORED))[0]) == STORED
        feed = _feed(link, await link.open_channel())
        await feed.until_alone(0)
        assert not await feed.delete_empty()
        await link.call(former.channel, commands.Channel.Close(200, "dead", 0, 0))
        await eventually(lambda: ready(STORED), what="all of it is back")


async def test_of_what_came_back_nothing_is_acked_before_all_of_it_is_settled(vhost: Vhost) -> None:
    """Members of the queue may have put it back in different orders (RabbitMQ up to 4.1.0)."""
    async with _quorum_queue(vhost) as (link, ready):

        async def read(count: int) -> tuple[ParkingFeed, list[Fetched]]:
            """By a reader of its own, which ends with its channel."""
            feed = _feed(link, await link.open_channel())
            return feed, (await _fetch(feed, count))[0]

        async def ends(feed: ParkingFeed) -> None:
            feed.flush_acks(0, everything=True)
            await link.call(feed.channel, commands.Channel.Close(200, "dead", 0, 0))

        feed, fetched = await read(20)
        await ends(feed)
        await eventually(lambda: ready(STORED), what="all of it is back")

        feed, fetched = await read(STORED)
        back = [message.tag for message in fetched if message.redelivered]
        new = [message.tag for message in fetched if not message.redelivered]
        assert (len(back), len(new)) == (20, STORED - 20)
        feed.settle(new[0])
        for tag in back[:-1]:
            feed.settle(tag)
        await ends(feed)
        await eventually(lambda: ready(STORED - 1), what="only the new one is acked")

        feed, fetched = await read(STORED)
        tags = [message.tag for message in fetched]
        feed.give_back((tags[0],))
        for tag in tags[1:-1]:
            feed.settle(tag)
        feed.flush_acks(0, everything=True)
        assert feed.acks.unsettled == len(tags)
        assert await ready(0)  # the queue did not get it: another member might put another one back
        assert not await feed.delete_empty()
        (again,), is_end = await _fetch(feed, STORED)
        assert is_end
        assert again == fetched[0]
        feed.settle(again.tag)
        feed.settle(tags[-1])
        await ends(feed)
        await eventually(lambda: ready(0), what="all are acked")


async def test_what_came_back_goes_back_together(vhost: Vhost) -> None:
    """As soon as nobody has any of it: also what is settled, which comes again."""
    async with _quorum_queue(vhost) as (link, ready):
        feed = await _after_a_former(link, ready, 20)
        fetched, _ = await _fetch(feed, STORED)
        *new, settled, late, first = sorted((message.redelivered, message.tag) for message in fetched)
        feed.settle(settled[1])
        in_hand = [tag for flagged, tag in new if flagged]
        feed.give_back((first[1], *in_hand))
        feed.flush_acks(0, everything=True)
        assert await ready(0)
        feed.give_back((late[1],))
        await eventually(lambda: ready(20), what="all that came back is in the queue")
        again, is_end = await _fetch(feed, 1)
        assert is_end
        assert {message.body for message in again} == {m.body for m in fetched if m.redelivered}


async def test_kept_messages_are_not_added_to_with_each_read(vhost: Vhost) -> None:
    async with _quorum_queue(vhost) as (link, ready):
        feed = await _after_a_former(link, ready, 10)
        in_hand, *fetched = (await _fetch(feed, 1))[0]
        for _ in range(3):
            feed.give_back(tuple(message.tag for message in fetched if message.redelivered))
            fetched, is_end = await _fetch(feed, 5)
            assert not is_end
            assert len(fetched) == 9
        assert in_hand.redelivered


class DeletedLate:
    """A link to a cluster in which the node of a classic queue is away: RabbitMQ can't delete it yet."""

    def __init__(self) -> None:
        self.deletes = self.channels = 0
        self.is_back = False

    async def open_channel(self) -> int:
        self.channels += 1
        return self.channels

    async def call(self, channel: int, method: Any) -> Any:
        if isinstance(method, commands.Queue.Delete):
            self.deletes += 1
            if not self.is_back:
                away = (
                    "NOT_FOUND - home node 'r@h' of durable queue 'p1' in vhost '/' is down or inaccessible"
                )
                raise ChannelRefused(404, away)


async def test_a_queue_whose_node_is_away_is_deleted_when_the_node_is_back() -> None:
    """Its name must not be given again before: nobody could open a queue of that name."""
    node, told = DeletedLate(), list[Any]()
    link, unused = cast(Link, node), cast(Any, None)
    channels = Channels(link, LaneNames("orders"), quorum=frozenset(), lock_retry_s=1.0)
    feeds = ParkingFeeds(
        link, ("p1",), unused, channels, unused, quorum=False, probe=unused, defined_s=0.0, former_s=0.0,
        misleading=(), report=told.append, fail=told.append,
    )  # fmt: skip
    feeds._feeds[parking_id(0)] = _feed(link, await node.open_channel(), quorum=False)
    feeds.perform(DeleteParkingQueue(parking_id(0)))
    await eventually(lambda: node.deletes > 1, what="it is tried again")
    assert not told
    node.is_back = True
    await eventually(lambda: told, what="it is deleted")
    assert told == [ParkingQueueDeleted(parking_id(0), True)]
