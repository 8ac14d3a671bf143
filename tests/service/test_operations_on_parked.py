"""Operations on a parked group, on real servers (docs/semantics.md, O-32)."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.conftest import Starter
from tests.service.harness import Bench, lane
from tests.service.operating import operator, ordered
from tests.service.test_parking import (
    BACKLOG,
    LOOK_AHEAD,
    a_parked_group,
    has_no_parking_queue,
    numbers,
    parked,
)
from tests.waiting import eventually

#: Enough that a dispatcher is killed while it takes them.
MANY = 2_000


@pytest.mark.seed("Q21", "Q22", "Q25")
async def test_what_is_parked_is_purged_and_moved_in_order(bench: Bench) -> None:
    client, stuck, _ = await a_parked_group(bench)
    await client.declare("elsewhere")
    counted = await ordered(bench, "groups.move", group="a", to="elsewhere", dry_run=True)
    assert counted["messages"] == BACKLOG - 1
    purged = await operator(bench, "groups", "purge", "orders", "a", "--first", "20")
    assert purged == "a: 20 messages purged; 1 message in flight\n"
    client.send("in", b"%d" % BACKLOG, "a")
    await client.confirmed()
    moved = await operator(bench, "groups", "move", "orders", "a", "--to", "elsewhere")
    assert moved == "a: 40 messages moved to elsewhere; 1 message in flight\n"
    there = [int(fetched.body) for fetched in await client.take("elsewhere")]
    assert there == list(range(21, BACKLOG + 1))
    client.send("in", b"1000", "a")
    stuck.release()
    await stuck.has(2)
    assert numbers(stuck, "a") == [0, 1000]
    await has_no_parking_queue(client, bench)
    await bench.acked()


@pytest.mark.parametrize("kind", ["purge", "move"])
async def test_a_leader_may_be_killed_while_it_takes_what_is_parked(
    bench: Bench, dispatcher_process: Starter, kind: str
) -> None:
    one = dispatcher_process(orders=lane(look_ahead=LOOK_AHEAD))
    await asyncio.to_thread(one.ready)
    client = await bench.client()
    await client.declare("elsewhere")
    stuck = await bench.joined("stuck", prefetch=1, hold=True)
    for number in range(MANY):
        client.send("in", b"%d" % number, "a")
    await client.confirmed()
    await stuck.has(1)
    await bench.joined("other")

    async def all_parked() -> bool:
        return (await parked(client, bench) or 0) == MANY - 1

    await eventually(all_parked, what="the backlog is parked")
    target = {"to": "elsewhere"} if kind == "move" else {}
    result = asyncio.create_task(ordered(bench, f"groups.{kind}", group="a", **target))

    async def some_taken() -> bool:
        return (await parked(client, bench) or 0) < MANY - 100

    await eventually(some_taken, what="some of what is parked was taken")
    one.kill9()
    left = await parked(client, bench) or 0
    assert 0 < left < MANY - 1, "the test needs a death in the middle"
    await asyncio.to_thread(one.start)
    assert (await result)["messages"] == MANY - 1
    if kind == "move":
        there = [int(fetched.body) for fetched in await client.take("elsewhere")]
        assert list(dict.fromkeys(there)) == list(range(1, MANY)), "some may be there twice"
    client.send("in", b"%d" % MANY, "a")
    stuck.release()
    await stuck.has(2)
    assert numbers(stuck, "a") == [0, MANY]
    await has_no_parking_queue(client, bench)
