"""Hand-over lanes: their consumers only read a queue and ack (docs/semantics.md, X)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatcher.amqp.events import Fetched
from dispatcher.errors import CommandRefused
from tests.service.harness import LANE, Bench, lane
from tests.service.protocol_consumer import ProtocolConsumer
from tests.service.reader import Reader, header
from tests.waiting import eventually

GROUPS = (b"a", b"b", b"c", b"d")


def _lane(*consumers: str, prefetch: int = 50, **keys: Any) -> dict[str, Any]:
    """Without `heartbeat`, which the harness sets for all others and these lanes refuse."""
    named = [{"id": name, "prefetch": prefetch} for name in consumers]
    return {
        "inbound": [{"queue": "in", "declare": True}], "handover": True, "consumers": named, **keys
    }  # fmt: skip


class HandOverBench(Bench):
    """Readers beside the rest."""

    readers: list[Reader]

    async def reader(self, name: str, **options: Any) -> Reader:
        reader = await Reader.open(self.rabbitmq, self.names().consumer(name), **options)
        self.readers.append(reader)
        return reader

    async def publish(self, first: int, last: int, *groups: bytes) -> None:
        client = await self.client()
        for number in range(first, last + 1):
            for group in groups or GROUPS:
                client.send("in", b"%s.%d" % (group, number), group)
        await client.confirmed()

    async def is_live(self, *names: str) -> None:
        async def live() -> bool:
            rows = (await self.ask("consumers.list"))["consumers"]
            return {row["consumer"] for row in rows if row["state"] == "live"} >= set(names)

        await eventually(live, what=f"{names} live")

    async def dead(self, count: int) -> list[Fetched]:
        client = await self.client()
        await client.has_ready(self.names().dead, count)
        return await client.take(self.names().dead)


@pytest.fixture
async def bench(vhost: Any) -> AsyncIterator[HandOverBench]:
    bench = HandOverBench(vhost)
    bench.readers = []
    try:
        yield bench
    finally:
        await bench.close()
        for reader in bench.readers:
            reader.die()


def _numbers(group: bytes, first: int, last: int) -> list[bytes]:
    return [b"%s.%d" % (group, number) for number in range(first, last + 1)]


def _by_number(reader: Reader) -> dict[bytes | None, bytes]:
    """The body of each `x-dispatch-seq` that came: a repeated copy adds nothing."""
    return {header(delivery, "x-dispatch-seq"): delivery.body for delivery in reader.received}


async def test_a_reader_gets_its_groups_in_order_and_the_confirm_settles(bench: HandOverBench) -> None:
    await bench.run(orders=_lane("one", "two"))
    one, two = await bench.reader("one", acks=False), await bench.reader("two", acks=False)
    await bench.is_live("one", "two")
    await bench.publish(1, 5)
    await eventually(lambda: len(one.received) + len(two.received) == 20, what="all of it handed over")
    await bench.acked()
    for group in GROUPS:
        assert sorted([one.group(group), two.group(group)]) == [[], _numbers(group, 1, 5)]
    assert len(one.received) == len(two.received) == 10


async def test_operators_are_warned_of_a_second_reader(bench: HandOverBench) -> None:
    with capture_logs() as logged:
        await bench.run(orders=_lane("one"))
        await bench.reader("one")
        await bench.is_live("one")
        await bench.reader("one")
        await eventually(lambda: _shared(logged), what="a line about both of them")
    (line,) = _shared(logged)
    assert (line["log_level"], line["consumer"], line["readers"]) == ("warning", "one", 2)


def _shared(logged: list[Any]) -> list[Any]:
    return [line for line in logged if line["event"] == "consumer_queue_shared"]


async def test_what_a_dead_reader_had_goes_to_another_before_anything_newer(bench: HandOverBench) -> None:
    await bench.run(orders=_lane("one", "two", prefetch=100))
    one, two = await bench.reader("one", acks=False), await bench.reader("two", acks=False, prefetch=0)
    await bench.is_live("one", "two")
    await bench.publish(1, 10)
    await one.has(10)
    await two.has(20)
    of_one = [group for group in GROUPS if not two.group(group)]
    one.ack(one.received[0])  # it has done one
    await one.heard()
    done = one.received[0].body
    one.die()
    await bench.publish(11, 12)
    await eventually(lambda: len(two.received) == 47, what="all that was not done, at the other")
    for group in of_one:
        begins = 2 if done.startswith(group) else 1
        assert two.group(group) == _numbers(group, begins, 12)
    handed_over = [body for group in of_one for body in _numbers(group, 1, 10)]
    taken = [delivery for delivery in two.received if delivery.body in handed_over]
    assert [header(delivery, "x-dispatch-attempt") for delivery in taken] == [(2).to_bytes(8)] * 19
    client = await bench.client()
    assert await client.ready(bench.names().consumer("one")) == 0
    await bench.acked()
    back = await bench.reader("one")  # its queue is its own again
    await bench.is_live("one", "two")
    await bench.publish(1, 1, b"new")
    await back.has(1)


async def test_a_reader_that_is_alone_finds_its_queue_as_it_was(bench: HandOverBench) -> None:
    await bench.run(orders=_lane("one"))
    one = await bench.reader("one", acks=False)
    await bench.publish(1, 3, b"a")
    await one.has(3)
    one.die()

    async def is_lost() -> bool:
        return (await bench.ask("consumers.list"))["consumers"][0]["state"] == "lost"

    await eventually(is_lost, what="its death seen")
    back = await bench.reader("one")
    await bench.publish(4, 4, b"a")
    await back.has(4)
    assert back.group(b"a") == _numbers(b"a", 1, 4)


async def test_who_cancels_keeps_what_it_has_and_another_gets_what_is_behind(bench: HandOverBench) -> None:
    await bench.run(orders=_lane("one", "two"))
    one = await bench.reader("one", acks=False, prefetch=2)
    await bench.publish(1, 5, b"a")
    await one.has(2)
    two = await bench.reader("two")
    await bench.is_live("one", "two")
    await one.cancel()
    await two.has(3)
    assert (one.group(b"a"), two.group(b"a")) == (_numbers(b"a", 1, 2), _numbers(b"a", 3, 5))
    for delivery in one.received:
        one.ack(delivery)
    await one.heard()
    await bench.publish(6, 6, b"a")
    await two.has(4)
    one.die()
    client = await bench.client()
    await client.has_ready(bench.names().consumer("one"), 0)
    assert two.group(b"a") == _numbers(b"a", 3, 6)


async def test_no_more_waits_in_a_queue_than_its_prefetch(bench: HandOverBench) -> None:
    await bench.run(orders=_lane("one", prefetch=5))
    one = await bench.reader("one", acks=False, prefetch=1)
    await bench.publish(1, 20, b"a")
    client = await bench.client()
    await client.has_ready(bench.names().consumer("one"), 5)
    await eventually(lambda: bench.status()["held"] == 14, what="all others to be read")
    for number in range(20):
        await one.has(number + 1)
        one.ack(one.received[number])
    assert one.group(b"a") == _numbers(b"a", 1, 20)


@pytest.mark.seed("R21")
async def test_what_is_rejected_comes_to_the_dead_queue_as_it_was(bench: HandOverBench) -> None:
    await bench.run(orders=_lane("one"))
    one = await bench.reader("one", acks=False)
    client = await bench.client()
    client.send("in", b"a.1", b"a", delivery_mode=1, message_id=b"m1")
    await client.confirmed()
    await one.has(1)
    one.reject(one.received[0])
    (dead,) = await bench.dead(1)
    assert header(dead, "x-dispatch-reason") == b"rejected"
    assert header(dead, "x-dispatch-group") == b"a"
    assert (header(dead, "x-dispatch-origin") or b"").startswith(b"in ")
    assert header(dead, "x-dispatch-routing-key") == b"in"
    assert header(dead, "x-death") is None
    assert bench.counter("failed") == 1
    await client.has_ready(bench.names().rejected, 0)


async def test_a_killed_dispatcher_loses_nothing_and_keeps_the_order(bench: HandOverBench) -> None:
    keys = _lane("one", "two")
    await bench.run(orders=keys)
    one, two = await bench.reader("one"), await bench.reader("two")
    await bench.is_live("one", "two")
    await bench.publish(1, 30)
    await bench.crash()
    await bench.run(orders=keys)
    await bench.publish(31, 40)

    def all_there() -> bool:
        return all(len({*one.group(group), *two.group(group)}) == 40 for group in GROUPS)

    await eventually(all_there, what="all of it")
    for group in GROUPS:
        bodies = one.group(group) or two.group(group)
        assert not (one.group(group) and two.group(group))  # the owner stays
        assert list(dict.fromkeys(bodies)) == _numbers(group, 1, 40)


async def test_a_queue_that_was_being_read_back_is_read_back_by_the_next_dispatcher(
    bench: HandOverBench,
) -> None:
    keys = _lane("one", "two", prefetch=200)
    await bench.run(orders=keys)
    one, two = await bench.reader("one", acks=False, prefetch=0), await bench.reader("two")
    await bench.is_live("one", "two")
    await bench.publish(1, 30)
    await eventually(lambda: len(one.received) + len(two.received) == 120, what="all of it handed over")
    one.die()
    await eventually(lambda: bench.counter("handed_on") > 0, what="the first of it on its way")
    await bench.crash()
    await bench.publish(31, 32)
    await bench.run(orders=keys)

    def all_there() -> bool:
        return all(len(set(two.group(group))) == 32 for group in GROUPS)

    await eventually(all_there, what="all of it at the one that lives")
    for group in GROUPS:
        assert list(dict.fromkeys(two.group(group))) == _numbers(group, 1, 32)


async def test_what_a_stop_leaves_is_settled(bench: HandOverBench) -> None:
    await bench.run(orders=_lane("one", prefetch=200))
    one = await bench.reader("one")
    await bench.publish(1, 20)
    await one.has(40)
    await bench.stop()
    client = await bench.client()
    left = await client.ready("in")
    await eventually(lambda: len(one.received) == 80 - left, what="what was handed over")


async def test_nobody_can_join_and_no_group_is_moved(bench: HandOverBench) -> None:
    await bench.run(orders=_lane("one"))
    await bench.reader("one")
    await bench.is_live("one")
    stranger: ProtocolConsumer = bench.consumer("stranger")
    await stranger.join(expect="refused")
    for command, arguments in (
        ("rebalance", {}), ("groups.close", {"group": "a"}), ("consumers.drain", {"consumer": "one"}),
        ("consumers.evict", {"consumer": "one"}), ("groups.pin", {"group": "a", "consumer": "one"}),
    ):  # fmt: skip
        with pytest.raises(CommandRefused, match="this lane hands over"):
            await bench.ask(command, LANE, **arguments)


async def test_what_is_read_back_goes_on_by_its_numbers_and_once_and_what_is_foreign_is_dead_lettered(
    bench: HandOverBench,
) -> None:
    """A fail-over may leave one behind newer ones, or twice."""
    await bench.run(orders=_lane("one", "two"))
    one = await bench.reader("one", acks=False, prefetch=0)
    await bench.publish(1, 4, b"a")
    await one.has(4)
    await bench.acked()
    two = await bench.reader("two")
    await bench.is_live("one", "two")
    client, queue = await bench.client(), bench.names().consumer("one")
    for delivery in one.received[:2]:
        client.send_raw(queue, delivery.body, delivery.properties, bench.names().exchange)
    client.send(queue, b"foreign")
    await client.confirmed()
    await one.has(7)
    one.ack(one.received[0])
    await one.heard()
    one.die()
    (dead,) = await bench.dead(1)
    assert (dead.body, header(dead, "x-dispatch-reason")) == (b"foreign", b"no dispatcher has handed it over")
    await bench.publish(5, 5, b"a")
    await two.has(5)
    assert two.bodies() == _numbers(b"a", 1, 5)


async def test_who_is_named_no_more_is_read_back_once_nobody_reads(bench: HandOverBench) -> None:
    await bench.run(orders=_lane("one", "two"))
    one = await bench.reader("one", acks=False, prefetch=0)
    await bench.publish(1, 3, b"a")
    await one.has(3)
    had = _by_number(one)
    await bench.crash()
    await bench.run(orders=_lane("two"))
    two = await bench.reader("two")
    await bench.is_live("two")
    await bench.publish(4, 4, b"a")
    await bench.publish(1, 1, b"new")
    await two.has(1)
    assert two.bodies() == [b"new.1"], "its group waits"
    # The crash may have come before the confirms were committed: then X-6 repeats copies, with known numbers.
    assert _by_number(one) == had, "nothing new for who is named no more"
    one.die()
    await two.has(5)
    assert two.group(b"a") == _numbers(b"a", 1, 4)


async def test_a_lane_that_begins_to_hand_over_ends_who_had_joined(bench: HandOverBench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    joined = await bench.joined("one", hold=True)
    client.send("in", b"a.1", b"a")
    await joined.has(1)
    await bench.crash()
    await bench.run(orders=_lane("one"))
    one = await bench.reader("one", acks=False)
    await one.has(1)
    assert header(one.received[0], "x-dispatch-attempt") == (2).to_bytes(8)
    await bench.acked()
    joined.release()  # whose word does not count
    await joined.confirmed()
    await bench.publish(2, 2, b"a")
    await one.has(2)
    assert one.bodies() == _numbers(b"a", 1, 2)
