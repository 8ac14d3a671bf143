"""`flush` tells whether settles count: also after a consumer was cut off, and taken back or not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatcher.client.member import TAKEN_WAIT_MS
from dispatcher.client.shards import ShardsEngine
from dispatcher.errors import SettlesInDoubt
from tests.client.copies_on_wire import copy_properties, notice_properties
from tests.client.lane_stub import LaneStub
from tests.client.subjects import AsyncConsumer, MakeConsumer
from tests.client.tcp_proxy import TcpProxy
from tests.client.test_engine import Application, Subject
from tests.waiting import eventually

# --- the engine ---


class Settler(Subject):
    """Its application has settled message 5, and RabbitMQ has not confirmed that."""

    def __init__(self) -> None:
        super().__init__()
        self.deliver(copy_properties(5))
        self.settle()

    def settle(self, place: int = -1) -> None:
        self.application.messages[place].settle()
        self.loop.turn()

    def confirm(self) -> None:
        for publication in self.link.published:
            if publication.token:
                self.engine.confirmed(publication.token)
        self.loop.turn()

    def cut(self) -> None:
        self.engine.lost("cut", 0)
        self.loop.turn()

    def come_back(self) -> None:
        """With a new queue, and all of its words confirmed; not welcomed yet."""
        self.engine.opened("q2")
        self.confirm()

    def taken(self) -> None:
        self.deliver(*notice_properties("taken", incarnation="uuid-1"))

    def welcomed(self) -> None:
        self.deliver(*notice_properties("welcome", incarnation="uuid-1", n=2))


def test_a_settle_counts_when_it_is_confirmed() -> None:
    subject = Settler()
    assert not subject.engine.flushed()
    subject.confirm()
    assert subject.engine.flushed()


@pytest.mark.parametrize("when", ["before the cut", "while cut off"])
def test_what_is_confirmed_over_a_new_connection_counts_with_the_welcome(when: str) -> None:
    subject = Settler()
    if when == "while cut off":
        subject.deliver(copy_properties(6))
        subject.confirm()
        subject.cut()
        subject.settle()
    else:
        subject.cut()
    subject.come_back()
    assert not subject.engine.flushed()
    subject.welcomed()
    assert subject.engine.flushed()
    assert subject.engine.doubts == 0


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_taken_instead_of_the_welcome_leaves_settles_in_doubt(is_confirmed: bool) -> None:
    subject = Settler()
    subject.cut()
    if is_confirmed:
        subject.come_back()
    else:
        subject.engine.opened("q2")
    subject.taken()
    assert subject.engine.flushed(), "the next incarnation has settled nothing"
    assert subject.engine.doubts == 1


def test_what_was_confirmed_just_before_the_cut_may_not_count() -> None:
    """An operator's eviction closes the connection, and only the answer to the next join tells of it."""
    subject = Settler()
    subject.confirm()
    subject.cut()
    assert not subject.engine.flushed()
    subject.come_back()
    subject.taken()
    assert subject.engine.doubts == 1


def test_a_flush_before_the_cut_has_told_all() -> None:
    subject = Settler()
    subject.confirm()
    assert subject.engine.flushed()
    subject.cut()
    subject.come_back()
    subject.taken()
    assert subject.engine.doubts == 0


@pytest.mark.parametrize("is_flushed", [True, False])
def test_an_eviction_leaves_what_no_flush_has_told_in_doubt(is_flushed: bool) -> None:
    subject = Settler()
    subject.confirm()
    assert not is_flushed or subject.engine.flushed()
    subject.taken()
    assert subject.engine.doubts == (0 if is_flushed else 1)


def test_a_settle_between_the_notice_and_the_loss_of_the_message_is_in_doubt() -> None:
    subject = Settler()
    subject.confirm()
    subject.deliver(copy_properties(6))
    assert subject.engine.flushed()
    subject.loop.call_soon(subject.application.messages[-1].settle)  # before the step that `taken` asks for
    subject.taken()
    subject.loop.turn()
    assert subject.engine.doubts == 1


def test_a_settle_from_another_thread_after_the_loss_is_in_doubt() -> None:
    subject = Settler()
    subject.confirm()
    subject.deliver(copy_properties(6))
    assert subject.engine.flushed()
    subject.taken()
    assert not subject.engine.settle(subject.application.messages[-1], None, 1)
    assert subject.engine.doubts == 1


def test_taken_as_the_answer_to_a_leave_leaves_no_doubt() -> None:
    subject = Settler()
    subject.engine.leave()
    subject.loop.turn()
    subject.taken()  # before the confirm: the dispatcher may be quicker
    assert subject.link.is_closed
    assert subject.engine.doubts == 0


def test_leaving_without_an_answer_leaves_no_doubt() -> None:
    subject = Settler()
    subject.engine.leave()
    subject.loop.turn()
    subject.confirm()
    subject.loop.now += TAKEN_WAIT_MS
    subject.engine._step()
    assert subject.link.is_closed
    assert subject.engine.doubts == 0


def test_leaving_with_messages_in_hand_may_be_an_eviction() -> None:
    subject = Settler()
    subject.deliver(copy_properties(6))
    subject.engine.leave()
    subject.loop.turn()
    subject.taken()
    assert subject.engine.doubts == 1


def test_settles_of_an_incarnation_that_was_offline_for_too_long_are_in_doubt() -> None:
    subject = Settler()
    subject.cut()
    subject.loop.now += 10_000
    subject.engine._step()
    assert subject.engine.doubts == 1
    subject.engine.opened("q2")
    assert not subject.engine.flushed(), "they are still told"
    subject.confirm()
    assert subject.engine.flushed()


def test_settles_of_a_consumer_that_is_ended_are_in_doubt() -> None:
    subject = Settler()
    subject.engine.end()
    assert subject.engine.doubts == 1


def test_doubts_of_a_shard_that_ended_are_not_forgotten() -> None:
    subjects: dict[int, Settler] = {}

    def make_engine(number: int, prefetch: int, listener: Any) -> Any:
        subjects[number] = Settler()
        subjects[number].engine._listener = listener
        return subjects[number].engine

    application = Application()
    shards = ShardsEngine(make_engine, 10, application)
    assert not shards.flushed()
    subjects[1].engine.end()
    subjects[1].engine.closed()
    assert application.end == [None]
    assert shards.doubts == 1


# --- the consumers ---


async def cut_off_with_a_settle(lane: LaneStub, proxy: TcpProxy, consumer: Any) -> Any:
    me = await lane.present()
    seq = await lane.send(me, b"0", b"g")
    message = await consumer.next()
    proxy.refuses = True
    proxy.cut()
    await eventually(lambda: proxy.refused, what="the end of its connection")
    assert await consumer.ack(message)
    return me, seq


async def test_it_returns_when_the_consumer_is_back_in_time(
    lane: LaneStub, proxy: TcpProxy, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer(url=proxy.url)
    me, seq = await cut_off_with_a_settle(lane, proxy, consumer)
    proxy.refuses = False
    await consumer.flush()
    assert me.acked == [seq]


async def test_it_tells_that_the_consumer_was_taken_back(
    lane: LaneStub, proxy: TcpProxy, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer(url=proxy.url)
    former, _ = await cut_off_with_a_settle(lane, proxy, consumer)
    former.taken = True
    proxy.refuses = False
    with pytest.raises(SettlesInDoubt):
        await consumer.flush()
    assert former.acked == []
    present = await lane.present()
    seq = await lane.send(present, b"0", b"g", attempt=2)
    assert await consumer.ack(await consumer.next())
    await consumer.flush()
    await eventually(lambda: present.acked == [seq])


async def test_each_of_several_at_a_time_tells(lane: LaneStub, proxy: TcpProxy) -> None:
    consumer = AsyncConsumer(proxy.url)
    await consumer.open()
    try:
        former, _ = await cut_off_with_a_settle(lane, proxy, consumer)
        former.taken = True
        flushes = [asyncio.create_task(consumer.flush()) for _ in range(2)]
        await eventually(lambda: len(consumer.consumer._inbox._waiters) == 2)
        proxy.refuses = False
        told = await asyncio.gather(*flushes, return_exceptions=True)
        assert [type(each) for each in told] == [SettlesInDoubt] * 2
        await consumer.flush()
    finally:
        await consumer.close()
