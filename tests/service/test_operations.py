"""Operations on what waits of a group, end to end (docs/semantics.md, O-25 to O-27)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dispatcher.wire.protocol import HEADER_MARKER
from tests.amqp.samples import text
from tests.service.conftest import Starter
from tests.service.harness import Bench, lane
from tests.service.operating import bodies, full_of, operator, refusal, sent
from tests.waiting import eventually


@pytest.mark.seed("Q21")
async def test_a_purge_takes_exactly_what_waits(bench: Bench) -> None:
    await bench.run(orders=lane("in", "low"))
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True, prefetch=2)
    await sent(client, "g", b"1")
    await sent(client, "h", b"1")
    await consumer.has(2)
    await sent(client, "g", b"2", b"3", b"4")
    await sent(client, "h", b"2")
    client.send("low", b"5", "g")
    await client.confirmed()
    counted = await operator(bench, "groups", "purge", "orders", "g", "--dry-run")
    assert counted == "g: 4 messages would be purged; 1 message in flight\n"
    some = await operator(bench, "groups", "purge", "orders", "g", "--first", "1", "--json")
    assert {key: value for key, value in json.loads(some).items() if key != "group"} == {
        "operation": "purge", "open": False, "applied": True, "messages": 1, "in_flight": 1,
    }  # fmt: skip
    rest = await operator(bench, "groups", "purge", "orders", "g")
    assert rest == "g: 3 messages purged; 1 message in flight\n"
    consumer.release()
    await consumer.has(3)
    await bench.acked()
    await bench.acked("low")
    await sent(client, "g", b"6")
    await consumer.has(4)
    assert (bodies(consumer, b"g"), bodies(consumer, b"h")) == ([b"1", b"6"], [b"1", b"2"])
    assert await client.ready(bench.names().dead) == 0


async def begun(bench: Bench, uuid: str) -> None:
    """Begin a purge of `g` that can't end yet."""
    line = await refusal(bench, "groups", "purge", "orders", "g", "--uuid", uuid, "--timeout", "1s")
    assert line == (
        "dispatcher: groups.purge is not done within 1s; it may be still: ask again with --uuid " + uuid
    )


@pytest.mark.seed("Q21")
async def test_a_leader_that_is_killed_leaves_it_to_the_next(
    bench: Bench, dispatcher_process: Starter
) -> None:
    one = dispatcher_process("one", orders=lane(look_ahead=3))
    await asyncio.to_thread(one.ready)
    client = await bench.client()
    consumer = await full_of(bench, client)
    await begun(bench, "the-purge")
    other = await refusal(bench, "groups", "purge", "orders", "g")
    assert other == "dispatcher: the group is in transition by the-purge; try again when that is done"
    one.kill9()
    two = dispatcher_process("two", orders=lane(look_ahead=3))
    await asyncio.to_thread(two.ready)

    async def listed() -> list[dict[str, Any]]:
        groups = json.loads(await operator(bench, "groups", "list", "orders", "--json"))["groups"]
        return [group for group in groups if group["group"] == "g"]

    assert [group["operation"] for group in await listed()] == ["the-purge"]
    consumer.release()
    done = json.loads(
        await operator(bench, "groups", "purge", "orders", "g", "--uuid", "the-purge", "--json")
    )
    await eventually(lambda: len(consumer.received) + done["messages"] >= 8)
    again = await operator(bench, "groups", "purge", "orders", "g", "--uuid", "the-purge", "--json")
    assert json.loads(again) == done
    got = bodies(consumer, b"g")
    assert got == [b"%d" % number for number in range(1, len(got) + 1)]
    assert len(got) + done["messages"] == 8
    assert {copy.attempt for copy in consumer.received} == {1}


async def test_a_stop_fails_it_and_nothing_was_changed(bench: Bench, dispatcher_process: Starter) -> None:
    one = dispatcher_process("one", orders=lane(look_ahead=3))
    await asyncio.to_thread(one.ready)
    client = await bench.client()
    consumer = await full_of(bench, client)
    await begun(bench, "the-purge")
    await asyncio.to_thread(one.terminate)
    await bench.run(orders=lane(look_ahead=3))
    line = await refusal(bench, "groups", "purge", "orders", "g", "--uuid", "the-purge")
    assert line == "dispatcher: purge the-purge: the dispatcher stops: nothing was changed"
    consumer.release()
    await consumer.has(8)
    await bench.acked()
    assert bodies(consumer, b"g") == [b"%d" % number for number in range(1, 9)]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("purge orders nobody", "no group 'nobody'"),
        ("purge nolane g", "lanes.nolane: there is no such lane"),
    ],
)
async def test_what_is_not_there_is_named(bench: Bench, arguments: str, line: str) -> None:
    await bench.run(orders=lane())
    assert (await refusal(bench, "groups", *arguments.split())).startswith(f"dispatcher: {line}")


async def test_a_marker_of_somebody_else_is_no_work_and_its_header_alone_is_nothing(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1")
    mark = text(HEADER_MARKER, "of another lane")
    client.send("in", b"", None, mark, type_=b"dispatch.marker")
    client.send("in", b"1", "g", mark)
    client.send("in", b"2", "g", type_=b"dispatch.marker")
    (one, two) = await consumer.has(2)
    await bench.acked()
    assert [copy.body for copy in consumer.received] == [b"1", b"2"]
    assert HEADER_MARKER not in one.headers
    assert (one.properties.message_type, two.properties.message_type) == (None, "dispatch.marker")
    await eventually(lambda: bench.status()["groups"] == 1)
