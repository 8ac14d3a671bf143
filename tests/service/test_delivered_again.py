"""A quorum queue that delivers again what is unacked on a channel that stays open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from dispatcher.amqp.events import ChannelClosed, Delivery, Fetched
from dispatcher.core.effects import Snapshot
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.queue_ids import FIRST_INBOUND
from dispatcher.errors import DeliveredAgain
from dispatcher.nodes.servers import PrivateServers
from dispatcher.service.inbound_feed import InboundFeed, InboundSource
from dispatcher.service.parking_feeds import ParkingFeed
from tests.service.conftest import Runner
from tests.service.harness import Bench, bench_of, lane, private_vhost
from tests.service.test_parking import BACKLOG, first_of, has_no_parking_queue, numbers
from tests.service.test_parking import LOOK_AHEAD as PARKING_LOOK_AHEAD
from tests.spec.lane_bench import clause
from tests.waiting import eventually

LOOK_AHEAD = 5
FULL = 10
NODE_LOST_AND_FOUND = """
{{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"{vhost}">>, queue, <<"{queue}">>)),
Leader = amqqueue:get_pid(Queue),
{{ok, _, _}} = ra:process_command(Leader, {{down, self(), noconnection}}),
{{ok, _, _}} = ra:process_command(Leader, {{nodeup, node()}})
"""


@pytest.fixture
async def private_bench(private_servers: PrivateServers) -> AsyncIterator[Bench]:
    async with bench_of(private_vhost(private_servers)) as made:
        yield made


async def _lose_sight(servers: PrivateServers, bench: Bench, queue: str = "in") -> None:
    """What the queue's leader does when it has lost the connection to the reader's node, and has it again."""
    command = " ".join(NODE_LOST_AND_FOUND.format(vhost=bench.vhost.name, queue=queue).split())
    await asyncio.to_thread(servers.rabbitmq.evaluate, command)


async def _run(bench: Bench, bodies: list[bytes], **keys: Any) -> Any:
    """A lane over a quorum queue with these messages of group g."""
    client = await bench.client()
    await client.declare("in", x_queue_type="quorum", x_delivery_limit=100)
    for body in bodies:
        client.send("in", body, "g")
    await client.confirmed()
    await bench.run(orders={**lane(**keys), "inbound": [{"queue": "in"}]})
    return client


async def test_what_comes_again_ends_the_session_and_nothing_is_handed_over_twice(
    private_servers: PrivateServers, private_bench: Bench
) -> None:
    clause("R-8", "ends the leadership")
    bench = private_bench
    await _run(bench, [b"%d" % number for number in range(8)])
    consumer = await bench.joined("one", hold=True, prefetch=4)
    await eventually(lambda: len(consumer.received) == 4, what="a full prefetch")
    runner = bench.runners["orders"]
    for leaderships in (2, 3):
        await _lose_sight(private_servers, bench)
        await eventually(lambda want=leaderships: runner.leaderships == want, what="the next leadership")
        await bench.leads()
    consumer.release()
    await bench.acked()
    assert [copy.body for copy in consumer.received] == [b"%d" % number for number in range(8)]
    assert {copy.attempt for copy in consumer.received} == {1}
    assert runner.leaderships == 3


async def test_a_backlog_that_came_back_from_earlier_sessions_ends_none(bench: Bench) -> None:
    """More of it than the look-ahead, and some equal in every byte."""
    clause("R-8", "Messages that came back before, from earlier sessions, end nothing")
    bodies = [b"%d" % (number // 2) for number in range(8 * LOOK_AHEAD)]
    client = await _run(bench, bodies, look_ahead=len(bodies))
    await eventually(lambda: bench.status()["inbound"][0]["held"] == len(bodies), what="all of it")
    await bench.crash()
    await client.has_ready("in", len(bodies))
    await bench.run(orders={**lane(look_ahead=LOOK_AHEAD), "inbound": [{"queue": "in"}]})
    consumer = await bench.joined("one", prefetch=2)
    await eventually(lambda: len(consumer.received) == len(bodies), what="all of them")
    await bench.acked()
    assert [copy.body for copy in consumer.received] == bodies
    assert bench.runners["orders"].leaderships == 1


async def test_what_a_parking_queue_took_back_is_not_acked_as_a_repeated_copy(
    private_servers: PrivateServers, private_bench: Bench
) -> None:
    """The copy that comes again is the only one that the queue still has."""
    clause("R-8", "Of a parking queue only a message that is here and unsettled does that")
    bench = private_bench
    bench.runner_type = Runner
    client = await _run(bench, [], look_ahead=PARKING_LOOK_AHEAD, max_in_flight_per_group=FULL)
    consumer, _ = await bench.joined("one", prefetch=FULL, hold=True), await bench.joined("other")
    for number in range(BACKLOG):
        client.send("in", b"%d" % number, "a")
    await eventually(lambda: bench.status()["parked"] == BACKLOG - FULL, what="the backlog is parked")
    consumer.settle(list(consumer.in_hand)[:-1])
    await consumer.has(2 * FULL - 1)
    await _lose_sight(private_servers, bench, first_of(bench))
    runner = bench.runners["orders"]

    def keeps_one() -> bool:
        """It is still here when the queue is read on."""
        consumer.settle(list(consumer.in_hand)[:-1])
        return runner.leaderships == 2

    await eventually(keeps_one, what="the next leadership")
    await bench.leads()
    consumer.release()
    await consumer.has(BACKLOG)
    assert numbers(consumer, "a") == list(range(BACKLOG))
    assert {copy.attempt for copy in consumer.received} == {1}
    await has_no_parking_queue(client, bench)
    await bench.acked()
    assert runner.leaderships == 2
    assert not bench.status()["parked_lost"]


async def test_an_ended_session_takes_nothing_more(bench: Bench) -> None:
    """The next one gets it again, and has it in its history and ledger."""
    await _run(bench, [])
    session: Any = bench.runners["orders"]._session
    (feed,) = session._feeds
    delivery = Delivery(feed._channel, b"", feed._delivered + 1, False, b"", b"in", b"\0\0", b"")
    session.receive([delivery, ChannelClosed(session._channels.lock, 406, "by somebody", 0, 0)])
    assert session.ended.done()
    taken = list(session._events)
    session.receive([delivery])
    assert feed._delivered == 0
    assert session._events == taken


def _nothing(fetched: list[Fetched]) -> list[Original]:
    return []


class Copies:
    """A feed of a quorum parking queue without a connection; it is told what was fetched."""

    def __init__(self, *misleading: str) -> None:
        self._tags = count(1)
        link: Any = None
        self.feed = ParkingFeed(
            link, "parked", 1, _nothing, quorum=True,
            misleading=[name.encode().ljust(16) for name in misleading],
        )  # fmt: skip

    def come(self, *names: str, again: bool = False, term: int = 1) -> DeliveredAgain | None:
        """What to end the session with when these are fetched."""
        messages = []
        for name in names:
            tag = next(self._tags)
            message = Original(FIRST_INBOUND, tag, (1, tag), name.encode().ljust(16), None, name, 1, 0, again)
            message.term = term
            messages.append(message)
        self.feed.acks.deliver(len(messages))
        return self.feed._delivered_again(messages)


async def test_a_leader_that_changes_amid_a_fetch_shows_by_what_comes_twice() -> None:
    """Its members return the same messages in different orders (RabbitMQ up to 4.1.0)."""
    assert Copies().come("b", "a", "c", again=True) is None
    found = Copies().come("b", "a", "b", again=True)
    assert found is not None
    assert found.by_message == b"b".ljust(16)
    copies = Copies()
    assert copies.come("a") is None
    assert copies.come("b", "a", again=True) is not None
    copies = Copies()
    assert copies.come("a", term=1) is None
    assert copies.come("a", again=True, term=2) is None, "it was published twice"


async def test_a_copy_that_is_no_longer_here_may_come_again() -> None:
    copies = Copies()
    assert copies.come("a", "b") is None
    copies.feed.settle(1)
    assert copies.come("a", again=True) is None, "the core knows that it is settled"
    assert copies.come("b", again=True) is not None


async def test_a_parked_copy_that_somebody_stored_twice_ends_three_leaderships_at_most() -> None:
    assert Copies().come("a", "a") is None, "it did not come back"
    assert Copies("a").come("a", "a", "b", again=True) is None
    assert Copies("a").come("a", "b", "b", again=True) is not None


class Feed:
    """A feed of a quorum queue without a connection; it is told what comes."""

    def __init__(self, *, classic: bool = False, misleading: tuple[bytes, ...] = ()) -> None:
        options = LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),))
        snapshot = Snapshot(lane_epoch=1, complete=True, broker_restarted=False)
        (self.queue,) = Lane(options, snapshot, 0).state.inbounds
        self._tags = count(1)
        self.feed = InboundFeed(
            None, InboundSource(1, "c", classic, 100), self.queue,  # type: ignore[arg-type]
            report=lambda _: None, misleading=misleading,
        )  # fmt: skip

    def comes(self, *names: str, times: int = 0) -> bool:
        """Whether these, which were delivered so often before, show that something comes again."""
        messages = [self.message(name, times) for name in names]
        self.feed.delivered(len(messages))
        return self.feed.delivered_again(messages) is not None

    def message(self, name: str, times: int) -> Original:
        """The next delivery; it was delivered so often before."""
        tag = next(self._tags)
        message = Original(FIRST_INBOUND, tag, (1, tag), name.encode().ljust(16), None, name, 1, 0, times > 0)
        message.deliveries = times
        return message


async def test_the_flag_alone_says_nothing() -> None:
    feed = Feed()
    assert not feed.comes("a", "b", times=1)
    assert not feed.comes("c")
    assert not feed.comes("d", times=1), "it is not here: another reader gave it back"
    assert feed.comes("a", times=2)


async def test_of_equal_messages_the_second_is_new_as_long_as_earlier_ones_come_back() -> None:
    feed = Feed()
    assert not feed.comes("a", "a", times=1)
    assert not feed.comes("a", times=1)
    assert feed.comes("a", times=2), "its count has risen while it was here"


async def test_counts_that_mislead_again_and_again_are_not_compared() -> None:
    feed = Feed(misleading=(b"a".ljust(16),))
    assert not feed.comes("a", "c", times=1)
    assert not feed.comes("a", times=2)
    assert feed.comes("c", times=2), "the others' are"
    feed = Feed(misleading=(b"a".ljust(16), b"b".ljust(16)))
    assert not feed.comes("b")
    assert feed.comes("b", times=1)


async def test_what_is_settled_may_come_again_too() -> None:
    clause("R-8", "settled or not")
    feed = Feed()
    assert not feed.comes("a", "b")
    for tag, name in ((1, "a"), (2, "b")):
        feed.feed.settle(tag)
        feed.queue.settled.unproven.append(((1, tag), name.encode().ljust(16)))
    feed.queue.settled.prove(1)
    assert feed.comes("a", times=1), "its ack counts as proven"
    assert feed.comes("b", times=1)


async def test_what_was_taken_back_on_its_way_comes_before_what_is_newer() -> None:
    """A quorum queue may deliver it behind that, if its leader lost sight of our node for a moment."""
    feed = Feed()
    assert not feed.comes("old")
    new, newer = feed.message("new", 0), feed.message("newer", 0)
    first, second = feed.message("on its way", 1), feed.message("and this", 1)
    arrived = [new, first, newer, second]
    assert feed.feed.delivered_again(arrived) is None
    assert feed.feed.in_order(arrived) == [first, second, new, newer]
    assert not feed.comes("next")
    assert feed.feed.in_order([first, new, second]) == [first, new, second], "that read had none"


async def test_a_classic_queue_keeps_what_an_open_channel_has() -> None:
    feed = Feed(classic=True)
    assert not feed.comes("a")
    assert not feed.comes("a", times=1)
