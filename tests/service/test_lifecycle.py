"""How long a group has an owner, end to end (docs/semantics.md, O-3 and O-8)."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.harness import Bench, lane
from tests.service.protocol_consumer import ProtocolConsumer
from tests.waiting import eventually


@pytest.mark.seed("A31")
async def test_an_idle_group_goes_to_whoever_is_next(bench: Bench) -> None:
    await bench.run(orders=lane(group_idle_timeout="2s", first_header="x-first"))
    client = await bench.client()
    owner = await bench.joined("c1", prefetch=1_000)
    for group in ("g", "touched", "busy", "waiting"):
        client.send("in", b"0", group)
    await owner.has(4)
    await bench.acked()
    owner.hold()
    await bench.ask("groups.pause", group="waiting")
    client.send("in", b"1", "waiting")
    client.send("in", b"1", "busy")
    await owner.has(5)
    other = await bench.joined("c2")

    async def touch() -> bool:
        """One message more of `touched`, settled; whether `g` has lost its owner meanwhile."""
        client.send("in", b"1", "touched")
        copies = await owner.has(len(owner.received) + 1)
        owner.settle([copies[-1].seq])
        return bench.counter("groups_idled") > 0

    await eventually(touch)
    await bench.ask("groups.resume", group="waiting")
    for group in ("g", "touched", "busy", "waiting"):
        client.send("in", b"2", group)
    await other.has(1)
    await eventually(lambda: owner.bodies().count(b"2") == 3)
    assert [copy.group for copy in other.received] == [b"g"], (
        "of one something came, one has some unsettled, of one some waits"
    )
    assert other.received[0].epoch > owner.received[0].epoch
    assert other.received[0].headers.get("x-first") is True
    assert not any("x-first" in copy.headers for copy in owner.received[4:]), "these have been its own since"
    owner.release()


async def _owned_by_one(bench: Bench, groups: str, **keys: object) -> ProtocolConsumer:
    """c1 owns these groups and has the first message of each in hand."""
    await bench.run(orders=lane(**keys))
    client = await bench.client()
    owner = await bench.joined("c1", hold=True)
    for group in groups:
        client.send("in", b"1", group)
    await owner.has(len(groups))
    return owner


@pytest.mark.seed("A12", "A15")
async def test_a_consumer_that_joins_gets_groups_on_their_next_messages(bench: Bench) -> None:
    owner = await _owned_by_one(bench, "abcd", rebalance={"on_join": True})
    owner.release()
    others = await asyncio.gather(*(bench.joined(f"c{number}") for number in (2, 3, 4)))
    await eventually(lambda: bench.counter("groups_moved") == 3)
    assert bench.counter("rebalances_on_join") == 1, "one for all three"
    client = await bench.client()
    for group in "abcd":
        client.send("in", b"2", group)
    for consumer in others:
        await consumer.has(1)
    await owner.has(5)


@pytest.mark.seed("A15", "A17")
async def test_only_lanes_that_say_so_rebalance_when_somebody_joins(bench: Bench) -> None:
    """By `match` or by themselves; by default nobody's groups move, and only what moves is paused."""
    lanes = {"us": lane("us"), "eu.own": lane("own", rebalance={"on_join": False}), "eu.all": lane("all")}
    match = [{"lanes": "eu.*", "rebalance": {"on_join": True, "pause": "lane"}}]
    await bench.run(changes={"match": match}, **lanes)
    client = await bench.client()
    for name in lanes:
        owner = await bench.joined("c1", name)
        for group in "abcd":
            client.send(lanes[name]["inbound"][0]["queue"], b"1", group)
        await owner.has(4)
    for name in lanes:
        await bench.joined("c2", name)
    await eventually(lambda: bench.counter("groups_moved", "eu.all") == 2, what="the last one's rebalance")
    counts = {name: bench.counter("rebalances_on_join", name) for name in lanes}
    assert counts == {"us": 0, "eu.own": 0, "eu.all": 1}
    pauses = {name: (await bench.ask("rebalance", name, dry_run=True))["pause"] for name in lanes}
    assert pauses == {"us": "group", "eu.own": "group", "eu.all": "lane"}


@pytest.mark.seed("A16")
async def test_a_rebalance_may_hold_the_lane_until_all_is_settled(bench: Bench) -> None:
    owner = await _owned_by_one(bench, "abcd", rebalance={"pause": "lane"})
    other = await bench.joined("c2")
    assert len((await bench.ask("rebalance"))["moves"]) == 2
    client = await bench.client()
    for group in "abcdz":
        client.send("in", b"2", group)
    await eventually(lambda: bench.status()["held"] == 5)
    why = await bench.ask("groups.why", group="z")
    assert (why["reason"], why["facts"]["consumers"]) == ("rebalancing", {"c1": 4})
    assert not other.received
    owner.release()
    await eventually(lambda: len(other.received) + len(owner.received) == 9)
    assert len(other.received) in (2, 3), "two that moved, and perhaps the new one"


@pytest.mark.seed("A13", "A14")
async def test_a_reset_without_a_pause_may_overlap_and_a_plain_one_does_not(bench: Bench) -> None:
    owner = await _owned_by_one(bench, "ab")
    other = await bench.joined("c2", hold=True)
    client = await bench.client()
    await bench.ask("rebalance", group="a", to="c2", pause="none")
    client.send("in", b"2", "a")
    await other.has(1)
    assert {copy.group for copy in owner.in_hand.values()} == {b"a", b"b"}, "both work on a"
    await bench.ask("rebalance", group="b", to="c2")
    client.send("in", b"2", "b")
    await eventually(lambda: bench.status()["held"] == 1)
    assert other.bodies("b") == []
    owner.release()
    await other.has(2)
    other.release()
