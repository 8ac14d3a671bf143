"""Both consumers against a real broker: messages, settles, handlers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from dispatcher.client import RejectMessage, RetryLater
from dispatcher.client import properties as amqp_properties
from dispatcher.client.copies import Copy
from dispatcher.client.properties import Properties
from dispatcher.client.ranges import SeqRanges
from dispatcher.wire import protocol
from dispatcher.wire.protocol import Begun
from tests.client.copies_on_wire import integer_entry, string_entry
from tests.client.lane_stub import LaneStub
from tests.client.subjects import Consumer, MakeConsumer, Work
from tests.waiting import TIMEOUT_S, eventually


@asynccontextmanager
async def running(consumer: Consumer, work: Work, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """`run` in the background, stopped at the end."""
    task = asyncio.create_task(consumer.run(work, **options))
    try:
        yield task
        work.held.clear()
        await consumer.stop()
        await asyncio.wait_for(task, TIMEOUT_S)
    finally:
        task.cancel()


# --- messages ---


async def test_a_message_has_everything_that_was_sent_with_it(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    await lane.send(
        me, b"body", b"g\xff", attempt=2, epoch=77, deadline_at_ms=2**42,
        table=string_entry("h", b"v") + integer_entry("n", 5),
    )  # fmt: skip
    message = await consumer.next()
    assert (message.body, message.group, message.epoch, message.attempt) == (b"body", b"g\xff", 77, 2)
    assert (message.headers, message.deadline_at_ms) == ({"h": "v", "n": 5}, 2**42)
    assert message.first_for_consumer


async def test_the_original_properties_arrive(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    sent = Properties(
        content_type="text/plain", correlation_id="c", message_id="m", type="order", delivery_mode=1,
        timestamp=datetime(2024, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    consumer = await make_consumer()
    me = await lane.present()
    await lane.publish(me.queue, amqp_properties.write(sent, {"x-dispatch-seq": 5, "double": 1.1}), b"")
    message = await consumer.next()
    assert message.properties == sent
    assert message.headers == {"double": 1.1}


async def test_acked_and_failed_messages_are_settled(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    seqs = await lane.send_many(me, 10, groups=3)
    for _ in range(10):
        message = await consumer.next()
        if message.body == b"4":
            assert await consumer.fail(message, "no such customer")
        else:
            assert await consumer.ack(message)
        assert not await consumer.ack(message)
    await consumer.flush()
    await eventually(lambda: not me.unsettled)
    assert me.failed == [(seqs[4], "no such customer", 1)]
    assert me.acked == [seq for seq in seqs if seq != seqs[4]]


async def test_settles_are_coalesced(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    consumer = await make_consumer(prefetch=200)
    me = await lane.present()
    await lane.send_many(me, 200, groups=20)
    await consumer.ack_all([await consumer.next() for _ in range(200)])
    await eventually(lambda: len(me.acked) == 200)
    assert len(me.settles) < 100


async def test_heartbeats_say_what_is_held(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    seqs = await lane.send_many(me, 3, groups=1)
    await consumer.next()
    await eventually(lambda: lane.heartbeats and lane.heartbeats[-1].held == 3)
    assert (lane.heartbeats[-1].last, lane.heartbeats[-1].queue) == (seqs[-1], me.queue)


async def test_heartbeats_say_what_the_application_was_given(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    seqs = await lane.send_many(me, 4, groups=2)
    for _ in range(2):
        await consumer.next()
    told = Begun(((seqs[0], seqs[1]),), 1)
    await eventually(lambda: lane.heartbeats and lane.heartbeats[-1].begun == told)
    assert lane.heartbeats[-1].held == 4


async def test_a_word_says_at_once_that_several_were_taken(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    seqs = await lane.send_many(me, 4, groups=4)
    for _ in range(3):
        await consumer.next()
    words = [Begun(((seqs[0], seqs[last]),), 1) for last in (1, 2)]  # one for two messages, or for three
    await eventually(lambda: me.settles, what="a word before the next heartbeat")
    assert (me.settles[0].acked, me.settles[0].failed) == ((), ())
    assert me.settles[0].begun in words
    assert not me.acked


async def test_who_has_one_message_at_a_time_sends_no_word_of_its_own(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    await lane.send_many(me, 50, groups=5)
    for _ in range(50):
        await consumer.ack(await consumer.next())
    await consumer.flush()
    await eventually(lambda: not me.unsettled)
    assert all(settle.acked for settle in me.settles)


async def test_what_was_handed_over_before_is_told_before_it_begins(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    """Its consumer may have died of it. So the next death counts, whatever else was begun since."""
    work = Work()
    work.held = {b"killer"}
    async with running(await make_consumer(opened=False), work, concurrency=3):
        me = await lane.present()
        seq = await lane.send(me, b"killer", b"g", attempt=2)
        await eventually(lambda: work.begun)
        assert not work.ended
        told = Begun(((seq, seq),), 3)
        await eventually(lambda: any(settle.begun == told for settle in me.settles), what="a word")
        work.held.clear()
        await eventually(lambda: not me.unsettled)


async def test_a_second_consumer_of_an_id_says_that_it_waits(
    lane: LaneStub, make_consumer: MakeConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    lane.answer = protocol.TYPE_WAIT
    await make_consumer()

    def said() -> list[str]:
        return [record.message for record in caplog.records if record.levelname == "WARNING"]

    await eventually(lambda: any("unique" in line for line in said()))
    seen = len(lane.joins)
    await eventually(lambda: len(lane.joins) >= seen + 2)
    assert sum("unique" in line for line in said()) == 1


async def test_who_takes_messages_is_told_of_as_well(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    seq = await lane.send(me, b"killer", b"g", attempt=2)
    message = await consumer.next()
    told = Begun(((seq, seq),), 1)
    await eventually(lambda: any(settle.begun == told for settle in me.settles), what="a word")
    await consumer.ack(message)


async def test_handlers_begin_in_the_order_of_the_numbers(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer()
    work = Work()
    work.held = {b"first"}
    async with running(consumer, work, concurrency=1):
        me = await lane.present()
        for body, group in ((b"first", b"a"), (b"a2", b"a"), (b"b3", b"b"), (b"c4", b"c")):
            await lane.send(me, body, group)
        await eventually(lambda: lane.heartbeats and lane.heartbeats[-1].held == 4)
        work.held.clear()
        await eventually(lambda: not me.unsettled)
    assert work.bodies() == [b"first", b"a2", b"b3", b"c4"]


async def test_heartbeats_say_which_handlers_run_and_how_many_can(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer()
    work = Work()
    work.held = {b"0", b"1", b"2", b"3", b"4"}
    async with running(consumer, work, concurrency=3):
        me = await lane.present()
        seqs = await lane.send_many(me, 5, groups=5)
        await eventually(lambda: len(work.begun) == 3, what="the handlers")
        begun = {message.seq for message in work.begun}
        told = Begun(SeqRanges.of(begun).pairs(), 3)
        await eventually(lambda: lane.heartbeats and lane.heartbeats[-1].begun == told, what=str(told))
        assert begun == set(seqs[:3])
        work.held.discard(b"1")
        await eventually(lambda: me.settles, what="a settle")
        assert me.settles[-1].begun is not None
        assert me.settles[-1].begun.concurrency == 3


ODD_HEADERS = {
    "a timestamp in microseconds": b"\1hT" + (1_700_000_000_000_000).to_bytes(8),
    "a string that is not UTF-8": string_entry("h", b"\xff\xfe"),
    "a name that is not UTF-8": b"\1\xffS\0\0\0\1a",
    "an array": b"\1hA\0\0\0\2t\1",
}


@pytest.mark.parametrize("table", ODD_HEADERS.values(), ids=ODD_HEADERS)
async def test_no_header_ends_the_consumer(lane: LaneStub, make_consumer: MakeConsumer, table: bytes) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    await lane.send(me, b"odd", b"g", table=table)
    await lane.send(me, b"next", b"g")
    odd, following = await consumer.next(), await consumer.next()
    assert (odd.body, following.body) == (b"odd", b"next")
    assert len(odd.headers) == 1
    assert len(lane.joins) == 1


async def test_large_bodies_arrive_whole(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    body = bytes(range(256)) * 12_000
    await lane.send(me, body, b"g")
    await lane.send(me, b"", b"g")
    assert (await consumer.next()).body == body
    assert (await consumer.next()).body == b""


async def test_what_is_no_message_is_ignored(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    await lane.publish(me.queue, b"\0\0", b"a stranger's")
    await lane.publish_notice(me.queue, "dispatch.of-a-later-protocol", b"[]")
    await lane.publish_notice(me.queue, "dispatch.rejoin", b"not json")
    await lane.send(me, b"work", b"g")
    assert (await consumer.next()).body == b"work"


# --- handlers ---


@pytest.mark.seed("Q17", "R7")
async def test_groups_run_in_parallel_and_each_in_order(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    work = Work()
    async with running(await make_consumer(opened=False), work, concurrency=3):
        me = await lane.present()
        work.held = {b"0", b"1", b"2"}
        await lane.send_many(me, 20, groups=5)
        await eventually(lambda: work.running == 3)
        work.held = {b"0"}
        await eventually(lambda: len(work.ended) == 16, what="the four other groups are through")
        assert b"0" not in work.bodies()
        work.held = set()
        await eventually(lambda: not me.unsettled)
    assert work.running_most == 3
    for group in range(5):
        mine = [int(message.body) for message in work.ended if message.group == b"g%d" % group]
        assert mine == [group, group + 5, group + 10, group + 15]


async def test_ungrouped_messages_run_in_parallel(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    work = Work()
    async with running(await make_consumer(opened=False), work, concurrency=4):
        me = await lane.present()
        work.held = {b"one"}
        await lane.send(me, b"one")
        await lane.send(me, b"two")
        await eventually(lambda: work.bodies() == [b"two"])


class Unlucky:
    """Raises `error` for the body `bad`, in its first `times` attempts."""

    def __init__(self, error: Exception, times: int = 1_000) -> None:
        self.error = error
        self.times = times
        self.calls_at: list[float] = []

    def __call__(self, message: Copy) -> None:
        if message.body == b"bad":
            self.calls_at.append(time.monotonic())
            if len(self.calls_at) <= self.times:
                raise self.error


@pytest.mark.seed("R16", "R11")
async def test_a_failing_handler_is_tried_again_and_its_group_waits(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    unlucky = Unlucky(ValueError("not yet"), times=2)
    work = Work(unlucky)
    work.held = {b"bad"}
    async with running(await make_consumer(opened=False), work, concurrency=1, backoff_ms=60):
        me = await lane.present()
        await lane.send(me, b"bad", b"g")
        await lane.send(me, b"after", b"g")
        await lane.send(me, b"other", b"h")
        await eventually(lambda: lane.heartbeats and lane.heartbeats[-1].held == 3, what="all in hand")
        work.held.clear()
        await eventually(lambda: not me.unsettled)
    assert work.bodies() == [b"other", b"bad", b"after"]
    first, second, third = unlucky.calls_at
    assert second - first >= 0.059
    assert third - second >= 0.119
    assert not me.failed


@pytest.mark.seed("R10", "R20")
async def test_after_its_attempts_a_message_is_failed_and_the_group_goes_on(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    work = Work(Unlucky(ValueError("never")))
    async with running(await make_consumer(opened=False), work, attempts=3, backoff_ms=1):
        me = await lane.present()
        bad = await lane.send(me, b"bad", b"g")
        await lane.send(me, b"after", b"g")
        await eventually(lambda: not me.unsettled)
    assert me.failed == [(bad, "ValueError: never", 3)]
    assert work.bodies() == [b"after"]


async def test_the_lane_says_how_often_a_message_is_tried(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    lane.retry = {"attempts": 2, "backoff": 70}
    unlucky = Unlucky(ValueError("never"))
    async with running(await make_consumer(opened=False), Work(unlucky)):
        me = await lane.present()
        bad = await lane.send(me, b"bad", b"g")
        await eventually(lambda: not me.unsettled)
    assert me.failed == [(bad, "ValueError: never", 2)]
    first, second = unlucky.calls_at
    assert second - first >= 0.069


async def test_a_rejected_message_is_failed_at_once(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    unlucky = Unlucky(RejectMessage("unknown customer"))
    async with running(await make_consumer(opened=False), Work(unlucky)):
        me = await lane.present()
        bad = await lane.send(me, b"bad", b"g")
        await eventually(lambda: not me.unsettled)
    assert me.failed == [(bad, "unknown customer", 1)]


async def test_retry_later_chooses_the_pause(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    unlucky = Unlucky(RetryLater(80), times=1)
    async with running(await make_consumer(opened=False), Work(unlucky), backoff_ms=60_000):
        me = await lane.present()
        await lane.send(me, b"bad", b"g")
        await eventually(lambda: not me.unsettled)
    first, second = unlucky.calls_at
    assert second - first >= 0.079
    assert not me.failed


async def test_an_expired_message_is_failed_instead_of_handled(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    work = Work()
    async with running(await make_consumer(opened=False), work):
        me = await lane.present()
        late = await lane.send(me, b"late", b"g", deadline_at_ms=1_000)
        await lane.send(me, b"in time", b"g", deadline_at_ms=2**42)
        await eventually(lambda: not me.unsettled)
    assert me.failed == [(late, "expired", 1)]
    assert work.bodies() == [b"in time"]


async def test_a_handler_may_settle_by_itself(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    work = Work(lambda message: message.settle("by hand") and None)
    async with running(await make_consumer(opened=False), work):
        me = await lane.present()
        seq = await lane.send(me, b"x", b"g")
        await eventually(lambda: not me.unsettled)
    assert me.failed == [(seq, "by hand", 1)]
    assert not me.acked


async def test_a_frozen_handler_does_not_stop_heartbeats_of_a_blocking_consumer(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    work = Work()
    work.held = {b"frozen"}
    async with running(await make_consumer(opened=False), work, concurrency=1):
        me = await lane.present()
        await lane.send(me, b"frozen", b"g")
        await eventually(lambda: work.begun)
        seen = len(lane.heartbeats)
        await eventually(lambda: len(lane.heartbeats) >= seen + 3)


# --- leaving ---


async def test_stop_ends_iteration_when_everything_in_hand_is_settled(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    await lane.send_many(me, 3, groups=1)
    first = await consumer.next()
    await consumer.stop()
    await eventually(lambda: lane.leaves)
    await consumer.ack(first)
    for _ in range(2):
        await consumer.ack(await consumer.next())
    assert await consumer.next() is None
    assert not me.unsettled
    assert [leave.incarnation for leave in lane.leaves] == [me.uuid]


async def test_close_settles_what_is_finished_and_gives_up_the_rest(
    lane: LaneStub, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer()
    me = await lane.present()
    seqs = await lane.send_many(me, 3, groups=1)
    messages = [await consumer.next() for _ in range(3)]
    await consumer.ack(messages[0])
    await consumer.close()
    await eventually(lambda: me.acked == seqs[:1])
    assert [message.lost for message in messages] == [False, True, True]
    assert not await consumer.ack(messages[1])
    assert lane.leaves


async def test_a_stop_that_nobody_answers_ends_too(lane: LaneStub, make_consumer: MakeConsumer) -> None:
    lane.ends_leavers = False
    consumer = await make_consumer()
    await consumer.joined()
    await consumer.stop()
    assert await consumer.next() is None
