"""What makes messages a group, and that groups are independent (Q and A rows)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest

from dispatcher.client import GroupConsumer
from dispatcher.client.copies import Message
from tests.amqp.samples import text
from tests.redis_store.proxy import Proxy
from tests.service.harness import LANE, Bench, lane
from tests.spec.lane_bench import clause
from tests.waiting import eventually

#: As many are in flight at once in the test of open groups.
OPEN_GROUPS = 50_000


@pytest.mark.seed("Q2", "A21")
async def test_each_lane_groups_by_its_own_header(bench: Bench) -> None:
    await bench.run(
        cars=lane("cars", group_header=["x-car"]),
        towns=lane("towns", group_header=["x-town"]),
        plain=lane("plain", policy="concurrent", group_header=["x-car"]),
    )
    client = await bench.client()
    consumers = {name: await bench.joined("c", name) for name in ("cars", "towns")}
    plain = [await bench.joined(f"p{number}", "plain", hold=True) for number in range(2)]
    for number in range(6):
        fields = (text("x-car", f"car{number % 2}"), text("x-town", f"town{number % 3}"))
        for queue in ("cars", "towns", "plain"):
            client.send(queue, b"%d" % number, None, *fields)
    for name, groups in (("cars", 2), ("towns", 3)):
        copies = await consumers[name].has(6)
        assert {copy.group for copy in copies} == {f"{name[:-1]}{n}".encode() for n in range(groups)}
        assert copies[0].headers["x-car"] == "car0"  # the other header is plain data
        assert copies[0].headers["x-town"] == "town0"
    await eventually(lambda: [len(p.received) for p in plain] == [3, 3])


@pytest.mark.seed("A5")
async def test_a_message_without_a_group_may_belong_to_its_publisher(bench: Bench) -> None:
    await bench.run(orders=lane(group_header=["x-group-id", "property:app_id"]))
    consumers = [await bench.joined(f"c{number}") for number in range(3)]
    client = await bench.client()
    for number in range(10):
        for publisher in (b"shop", b"web"):
            client.send("in", b"%d" % number, None, app_id=publisher)
    client.send("in", b"x", "own", app_id=b"shop")
    await eventually(lambda: sum(len(c.received) for c in consumers) == 21)
    for publisher in ("shop", "web"):
        (copies,) = [copies for c in consumers if (copies := c.of_group(publisher))]
        assert [(copy.group_seq, int(copy.body)) for copy in copies] == [(n + 1, n) for n in range(10)]
    assert [copy.group_seq for c in consumers for copy in c.of_group("own")] == [1]


@pytest.mark.seed("A1", "A7", "C3")
async def test_names_of_other_brokers_group_and_close(bench: Bench) -> None:
    keys = {"group_header": ["JMSXGroupID", "_AMQ_GROUP_ID"], "sequence_header": "JMSXGroupSeq"}
    await bench.run(orders=lane(**keys))
    consumer = await bench.joined("c1")
    client = await bench.client()
    for number in range(10):
        client.send("in", b"%d" % number, None, text(keys["group_header"][number % 2], "g"))
    await consumer.has(10)
    assert [copy.group_seq for copy in consumer.received] == list(range(1, 11))
    closing = bytes([len(b"JMSXGroupSeq")]) + b"JMSXGroupSeq" + b"b" + b"\xff"
    client.send("in", b"last", None, text("JMSXGroupID", "g"), closing)
    await consumer.has(11)
    await eventually(lambda: bench.status()["groups"] == 0, what="the group was closed")


@pytest.mark.seed("Q3", "R19", "A8")
async def test_ten_thousand_groups_that_nobody_announced(bench: Bench) -> None:
    await bench.run(orders=lane())
    consumers = [await bench.joined(f"c{number}", prefetch=200) for number in range(2)]
    client = await bench.client()
    for number in range(10_000):
        client.send("in", b"x", f"group {number}")
    await client.confirmed()
    await eventually(lambda: sum(len(c.received) for c in consumers) == 10_000, 60)
    groups = Counter(copy.group for c in consumers for copy in c.received)
    assert len(groups) == 10_000
    assert {copy.group_seq for c in consumers for copy in c.received} == {1}
    await bench.acked()


@pytest.mark.seed("Q4")
async def test_every_group_of_a_full_window_may_be_open_at_once(bench: Bench) -> None:
    await bench.run(orders=lane(look_ahead=OPEN_GROUPS))
    consumer = await bench.joined("c1", prefetch=OPEN_GROUPS, hold=True)
    client = await bench.client()
    for number in range(OPEN_GROUPS):
        client.send("in", b"x", f"group {number}")
    await client.confirmed()
    await consumer.has(OPEN_GROUPS, timeout_s=60)
    assert len(consumer.in_hand) == OPEN_GROUPS
    assert (bench.status()["groups"], bench.status()["in_flight"]) == (OPEN_GROUPS, OPEN_GROUPS)


@pytest.mark.seed("Q17", "R7")
async def test_a_message_is_settled_when_its_handler_has_ended(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    begun: list[bytes] = []
    may_end = asyncio.Event()

    async def handle(message: Message) -> None:
        begun.append(message.body)
        if message.group == b"g":
            await may_end.wait()

    consumer = GroupConsumer(bench.rabbitmq.url, LANE, "c1", prefix=bench.vhost.redis_prefix)
    running = asyncio.create_task(consumer.run(handle, concurrency=2, stop_on_signals=False))
    for body, group in ((b"1", "g"), (b"2", "g"), (b"other", "h")):
        client.send("in", body, group)
    await eventually(lambda: bench.counter("settled") == 1)
    assert (sorted(begun), bench.status()["in_flight"]) == ([b"1", b"other"], 2)
    may_end.set()
    await bench.acked()
    assert begun[2:] == [b"2"]
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@pytest.mark.seed("Q18")
async def test_settling_out_of_order_keeps_the_group_in_order(bench: Bench) -> None:
    await bench.run(orders=lane(policy="sequenced"))
    client = await bench.client()
    for number in range(4):
        client.send("in", b"%d" % number, "g")
    await client.confirmed()
    first = await bench.joined("c1", prefetch=2, hold=True)
    copies = await first.has(2)
    first.settle([copies[1].seq])
    await first.confirmed()
    await first.drop()
    heir = await bench.joined("c2")
    await heir.has(3)
    assert heir.bodies() == [b"0", b"2", b"3"]
    assert [copy.attempt for copy in heir.received] == [2, 1, 1]


@pytest.mark.seed("Q24")
async def test_queues_of_no_lane_are_left_alone(bench: Bench) -> None:
    client = await bench.client()
    await client.declare("plain")
    client.send("plain", b"x", "g")
    await client.confirmed()
    await bench.run(orders=lane())
    consumer = await bench.joined("c1")
    client.send("in", b"y", "g")
    await consumer.has(1)
    assert await client.consumers("plain") == 0
    assert [fetched.body for fetched in await client.take("plain")] == [b"x"]


@pytest.mark.seed("A4", "Q25")
async def test_grouped_messages_do_not_delay_the_ungrouped_ones_behind_them(bench: Bench) -> None:
    await bench.run(orders=lane())
    consumers = [await bench.joined(f"c{number}", prefetch=10, hold=True) for number in range(4)]
    client = await bench.client()
    for _ in range(100):
        client.send("in", b"grouped", "g")
    for _ in range(30):
        client.send("in", b"free")
    await client.confirmed()
    await eventually(lambda: sum(len(c.received) for c in consumers) == 40)
    assert sum(c.bodies().count(b"free") for c in consumers) == 30
    assert sum(c.bodies().count(b"grouped") for c in consumers) == 10


@pytest.mark.seed("A28", "D8")
async def test_without_consumers_messages_wait_where_they_are(bench: Bench) -> None:
    await bench.run(orders=lane())
    gone = await bench.joined("c1")
    client = await bench.client()
    client.send("in", b"0", "g")
    await gone.has(1)
    await bench.acked()
    await gone.drop()
    for number in range(1, 30):
        client.send("in", b"%d" % number, "g")
    await client.confirmed()
    await eventually(lambda: bench.status()["held"] == 29)
    assert bench.status()["in_flight"] == 0
    consumer = await bench.joined("c2")
    await consumer.has(29)
    assert consumer.bodies() == [b"%d" % number for number in range(1, 30)]


@pytest.mark.seed("A25")
async def test_what_redis_has_not_confirmed_is_handed_to_nobody(bench: Bench) -> None:
    clause("D-7", "Nothing is published before the commit that says so is known to have happened")
    async with Proxy(bench.vhost.redis_url) as proxy:
        redis = {"url": proxy.url, "timeout": "200ms"}
        await bench.run(changes={"redis": redis}, orders=lane())
        consumer = await bench.joined("c1")
        client = await bench.client()
        proxy.hold_requests_after(0)
        client.send("in", b"1", "g")
        await eventually(lambda: "did not answer within 200 ms" in bench.runners[LANE].readiness()[1])
        assert bench.runners[LANE].readiness()[0] is False
        assert not consumer.received
        proxy.release_requests()
        (copy,) = await consumer.has(1)
        assert (copy.body, copy.attempt) == (b"1", 1)
        await bench.acked()
        await bench.stop()


@pytest.mark.seed("A11", "A22")
async def test_wildcards_and_defaults_configure_lanes(bench: Bench) -> None:
    """A lane's own key counts before the first fitting `match`, that before `defaults`."""
    written = {
        "eu.orders": lane("a"), "eu.bills": lane("b", first_header="x-own"), "us.orders": lane("c"),
    }  # fmt: skip
    lanes = bench.settings(**written).lanes
    assert [lanes[name].first_header for name in written] == [None, "x-own", None]
    match = [{"lanes": "eu.*", "first_header": "x-match"}, {"lanes": "*.orders", "policy": "sequenced"}]
    lanes = bench.settings(changes={"match": match, "defaults": {"first_header": "x-all"}}, **written).lanes
    assert [lanes[name].first_header for name in written] == ["x-match", "x-own", "x-all"]
    assert [lanes[name].policy for name in written] == ["exclusive", "exclusive", "sequenced"]


@pytest.mark.seed("A11", "A19", "A22", "C21")
async def test_a_wildcard_says_which_lanes_have_first_headers_and_buckets(bench: Bench) -> None:
    """Two entries fit `eu.bills`: of the second one nothing counts, not even what the first does not say."""
    match = [
        {"lanes": "eu.*", "first_header": "x-match", "group_map": {"buckets": 2}},
        {"lanes": "#.bills", "group_map": {"buckets": 1}, "group_header": ["x-of-the-second-entry"]},
    ]
    defaults = {"first_header": "x-all"}
    changes = {"match": match, "defaults": defaults}
    lanes = {"eu.orders": lane("a"), "eu.bills": lane("b", first_header="x-own"), "us.orders": lane("c")}
    await bench.run(changes=changes, **lanes)
    client = await bench.client()
    seen = {}
    for name, written in lanes.items():
        consumer = await bench.joined("c1", name)
        for number in range(10):
            client.send(written["inbound"][0]["queue"], b"x", f"g{number}")
        first = (await consumer.has(10))[0].headers
        marks = {mark for mark in ("x-match", "x-all", "x-own") if mark in first}
        seen[name] = (marks, bench.status(name)["groups"])
    assert seen == {"eu.orders": ({"x-match"}, 2), "eu.bills": ({"x-own"}, 2), "us.orders": ({"x-all"}, 10)}


@pytest.mark.seed("Q7")
async def test_a_new_group_goes_to_who_has_room_however_many_that_one_owns(bench: Bench) -> None:
    await bench.run(orders=lane())
    client = await bench.client()
    full = await bench.joined("full", prefetch=1, hold=True)
    client.send("in", b"x", "first")
    await full.has(1)
    free = await bench.joined("free", prefetch=50, hold=True)
    for number in range(20):
        client.send("in", b"x", f"g{number}")
    await free.has(20)
    assert len(full.received) == 1


@pytest.mark.seed("C22", "C23")
async def test_what_sequences_do_not_mean(bench: Bench) -> None:
    """1 opens nothing anew; a negative one closes a group, and leaves one without owner unowned."""
    await bench.run(orders=lane())
    consumers = [await bench.joined(f"c{number}") for number in range(2)]
    client = await bench.client()

    async def owner_of(group: str, sequence: bytes) -> str:
        before = sum(len(c.received) for c in consumers)
        client.send("in", b"x", group, _sequence(sequence))
        await eventually(lambda: sum(len(c.received) for c in consumers) == before + 1)
        await bench.acked()
        return max((c for c in consumers if c.received), key=lambda c: c.received[-1].at).id

    first = await owner_of("g", b"\x00")
    assert [await owner_of("g", b"\x01") for _ in range(4)] == [first] * 4
    await owner_of("unowned", b"\xff")
    groups = (await bench.ask("groups.list", limit=100))["groups"]
    assert [group["group"] for group in groups] == ["g"]


def _sequence(value: bytes) -> bytes:
    return bytes([len(b"x-group-seq")]) + b"x-group-seq" + b"b" + value
