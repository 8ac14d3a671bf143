"""Whoever looks at all groups of a lane does not hold up the lane."""

from __future__ import annotations

import asyncio
from functools import partial

from dispatcher.core.views.views import Views
from dispatcher.service.group_listings import GROUPS_AT_A_TIME, GroupListings
from tests.service.harness import Bench, lane
from tests.spec.lane_bench import LaneBench
from tests.waiting import eventually


async def test_others_run_between_the_parts_of_a_listing() -> None:
    bench = LaneBench()
    state = bench.lane.state
    for number in range(20 * GROUPS_AT_A_TIME):
        state.group(b"%d" % number)
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    worker = asyncio.create_task(work())
    listings = GroupListings(Views(state))
    first, second = await asyncio.gather(listings.groups({"limit": 3}), listings.groups({"sort": "group"}))
    worker.cancel()
    assert first["total"] == second["total"] == 20 * GROUPS_AT_A_TIME
    assert turns >= 2 * 19, "one after the other, each in twenty parts"


async def test_a_page_that_is_loaded_again_and_again_costs_a_bounded_part_of_the_time() -> None:
    bench = LaneBench()
    listings = GroupListings(Views(bench.lane.state))
    bench.lane.state.group(b"g0")
    small = await listings.kept_groups({"limit": 10})
    bench.lane.state.group(b"g1")
    await eventually(partial(_sees, listings, 2), what="a small lane as it is now")
    assert small["total"] == 1
    for number in range(400 * GROUPS_AT_A_TIME):
        bench.lane.state.group(b"h%d" % number)
    await eventually(partial(_sees, listings, 400 * GROUPS_AT_A_TIME + 2))
    bench.lane.state.group(b"g2")
    assert await _sees(listings, 400 * GROUPS_AT_A_TIME + 2), "as it was a moment ago"


async def _sees(listings: GroupListings, groups: int) -> bool:
    return bool((await listings.kept_groups({"limit": 10}))["total"] == groups)


async def test_messages_pass_while_groups_are_listed(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1", prefetch=1_000)
    state = bench.runners["orders"]._session.lane.state  # type: ignore[union-attr]
    for number in range(100 * GROUPS_AT_A_TIME):  # as a lane has that ran for long
        state.group(b"idle-%d" % number)
    listing = asyncio.create_task(bench.ask("groups.list", sort="group", limit=2))
    for number in range(200):
        client.send("in", b"%d" % number, f"g{number}")
    await consumer.has(200)
    listed = await listing
    assert listed["total"] >= 100 * GROUPS_AT_A_TIME
    assert len(listed["groups"]) == 2


async def test_groups_are_filtered_and_listed_page_by_page(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    first = await bench.joined("c1", hold=True, prefetch=12)
    for number in range(12):
        client.send("in", b"x", f"g{number:02}")
    await first.has(12)
    second = await bench.joined("c2")
    for number in range(3):
        client.send("in", b"x", f"other {number}")
    await second.has(3)
    await bench.ask("rebalance", group="g05", to="c2")  # it changes hands once it is settled

    async def listed(**wanted: object) -> list[str]:
        rows = (await bench.ask("groups.list", **wanted))["groups"]
        return [row["group"] for row in rows]

    pages, last = [], None
    while page := await listed(sort="group", limit=4, owner="c1", match="g*", after=last):
        pages += page
        last = page[-1]
        assert len(page) <= 4
    assert pages == [f"g{number:02}" for number in range(12)]
    assert await listed(owner="c2", sort="group") == ["other 0", "other 1", "other 2"]
    assert await listed(state="draining") == ["g05"]
    assert await listed(match="*1", sort="group") == ["g01", "g11", "other 1"]
    for group, held in (("g07", 1), ("g02", 2), ("g02", 3)):
        client.send("in", b"x", group)
        await eventually(lambda held=held: bench.status()["held"] == held)
    assert await listed(sort="depth", limit=3) == ["g02", "g07", "g00"]
    assert await listed(sort="age", limit=3) == ["g07", "g02", "g00"]
    (row,) = (await bench.ask("groups.list", match="g02"))["groups"]
    assert (row["state"], row["owner"], row["epoch"]) == ("owned", "c1", first.of_group("g02")[0].epoch)


async def test_who_asks_for_the_same_at_once_shares_one_listing() -> None:
    bench = LaneBench()
    for number in range(5 * GROUPS_AT_A_TIME):
        bench.lane.state.group(b"%d" % number)
    listings = GroupListings(Views(bench.lane.state))
    asked = [listings.kept_groups({"limit": 3, "sort": "age"}) for _ in range(4)]
    first, *others = await asyncio.gather(*asked)
    assert all(other is first for other in others)
    other_order = await listings.kept_groups({"limit": 3, "sort": "group"})
    assert other_order is not first
    assert [row["group"] for row in other_order["groups"]] == ["0", "1", "10"]
