"""The ledger of a lane that runs: what it says is what consumers and producers saw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dispatcher.ledger.writer import Ledger
from tests.ledger import reading
from tests.service.harness import Bench, lane
from tests.service.protocol_consumer import ProtocolConsumer
from tests.waiting import TIMEOUT_S, eventually


async def three_in_hand(bench: Bench, ledger: Ledger) -> ProtocolConsumer:
    """A consumer that has got three messages of one group and keeps them."""
    bench.ledger = ledger
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    for number in range(3):
        client.send("in", b"%d" % number, "g", type_=b"order")
    await consumer.has(3)
    return consumer


async def test_every_hand_over_is_one_record_with_what_the_consumer_saw(
    bench: Bench, ledger: Ledger, tmp_path: Path
) -> None:
    bench.ledger = ledger
    await bench.run(orders=lane("high", "low"))
    client = await bench.client()
    types = ({}, {"type_": b"invoice"}, {"type_": b"\x07", "message_id": b"m"})
    for number in range(30):
        client.send(("high", "low")[number % 2], b"%d" % number, f"g{number % 3}", **types[number % 3])
    consumers = [await bench.joined("c1"), await bench.joined("c2")]
    await bench.acked("high")
    await bench.acked("low")
    await bench.stop()
    assert ledger.stop(TIMEOUT_S)
    settled = reading.records(tmp_path / "ledger", "settled")
    told = {
        (r["consumer"], r["incarnation"], r["seq"], r["group"], r["group_seq"], r["epoch"], r["attempt"],
         r["dispatch_id"].hex())
        for r in settled
    }  # fmt: skip
    seen = {
        (c.id, c.incarnation, copy.seq, copy.group.decode(), copy.group_seq, copy.epoch, copy.attempt,
         copy.identity)
        for c in consumers for copy in c.received if copy.group is not None
    }  # fmt: skip
    assert told == seen
    assert len(settled) == 30
    assert {(r["group"], r["type"]) for r in settled} == {("g0", None), ("g1", "invoice"), ("g2", "%07")}
    for record in settled:
        times = [record[name] for name in ("received_at", "dispatched_at", "committed_at", "time")]
        assert times == sorted(times)
        assert record["received_at"] <= record["confirmed_at"]
    for queue in ("high", "low"):
        arrivals = [r["arrival"] for r in settled if r["inbound"] == queue]
        assert sorted(arrivals) == sorted(set(arrivals))
        assert len(arrivals) == 15
    events = [record["event"] for record in reading.records(tmp_path / "ledger")]
    assert (events[0], events[-1]) == ("lane_started", "lane_ended")
    assert events.count("consumer_joined") == 2


async def test_numbers_have_no_gap_and_a_clean_stop_has_no_reason(
    bench: Bench, ledger: Ledger, tmp_path: Path
) -> None:
    consumer = await three_in_hand(bench, ledger)
    await bench.stop()
    assert ledger.stop(TIMEOUT_S)
    found = reading.records(tmp_path / "ledger")
    assert [record["ordinal"] for record in found] == list(range(1, len(found) + 1))
    assert found[-1]["reason"] is None
    in_hand = [record for record in found if record["event"] == "dispatched"]
    assert [record["seq"] for record in in_hand] == [copy.seq for copy in consumer.received]
    assert {record["writer"] for record in found} == {found[0]["writer"]}
    table = reading.dataset(tmp_path / "ledger")
    assert table["lane"].to_pylist() == ["orders"] * len(found)


@pytest.mark.seed("R20")
async def test_failures_deaths_and_retries_are_told(bench: Bench, ledger: Ledger, tmp_path: Path) -> None:
    bench.ledger = ledger
    await bench.run(orders=lane(reconnect_grace=0))
    client = await bench.client()
    for number in range(3):
        client.send("in", b"%d" % number, "g", type_=b"invoice")
    first = await bench.joined("c1", hold=True)
    await first.has(3)
    first.fail(first.received[0].seq, "no such customer", attempts=4)
    await first.confirmed()
    await eventually(lambda: bench.counter("dead_lettered") == 1)
    await first.drop()
    second = await bench.joined("c2")
    await bench.acked()
    await bench.stop()
    assert ledger.stop(TIMEOUT_S)
    found = reading.records(tmp_path / "ledger")
    failed = reading.one([r for r in found if r["event"] == "failed"])
    assert (failed["reason"], failed["calls"], failed["attempt"]) == ("no such customer", 4, 1)
    assert (failed["seq"], failed["incarnation"]) == (first.received[0].seq, first.incarnation)
    dead = reading.one([r for r in found if r["event"] == "dead_lettered"])
    assert [dead[name] for name in ("reason", "calls", "group", "arrival", "inbound")] == [
        "no such customer", 4, "g", failed["arrival"], "in"
    ]  # fmt: skip
    assert (failed["type"], dead["type"]) == ("invoice", "invoice")
    taken = [r for r in found if r["event"] == "taken_back"]
    again = [r for r in found if r["event"] == "settled"]
    assert [r["seq"] for r in taken] == [copy.seq for copy in first.received[1:]]
    assert [(r["arrival"], r["attempt"], r["wait_cause"], r["consumer"]) for r in again] == [
        (r["arrival"], 2, "retry", "c2") for r in taken
    ]
    assert {r["type"] for r in (*taken, *again)} == {"invoice"}
    assert [r["seq"] for r in again] == [copy.seq for copy in second.received]
    assert all(old["time"] <= new["dispatched_at"] for old, new in zip(taken, again, strict=True))
    ends = {(r["event"], r["incarnation"]) for r in found if r["event"].startswith("consumer_")}
    assert {("consumer_joined", first.incarnation), ("consumer_taken_back", first.incarnation),
            ("consumer_joined", second.incarnation)} <= ends  # fmt: skip


async def test_what_is_open_is_in_the_next_leaders_ledger_by_its_numbers(
    bench: Bench, ledger: Ledger, tmp_path: Path
) -> None:
    consumer = await three_in_hand(bench, ledger)
    await bench.crash()
    await bench.run(orders=lane())
    consumer.release()
    await bench.acked()
    await bench.stop()
    assert ledger.stop(TIMEOUT_S)
    found = reading.records(tmp_path / "ledger")
    started = [r for r in found if r["event"] == "lane_started"]
    former, latter = (json.loads(r["detail"]) for r in started)
    assert latter["former_epoch"] == started[0]["lane_epoch"]
    assert former["former_epoch"] is None
    assert [each["in_flight"] for each in latter["consumers"]] == [3]
    ended = [r["reason"] for r in found if r["event"] == "lane_ended"]
    assert ended[0] is not None
    assert ended[1] is None
    opened = [r for r in found if r["event"] == "dispatched"]
    assert {r["type"] for r in opened} == {"order"}
    settled = [r for r in found if r["event"] == "settled"]
    name = ("inbound", "arrival_epoch", "arrival", "group", "group_seq", "epoch", "incarnation", "seq")
    assert [[r[key] for key in name] for r in settled] == [[r[key] for key in name] for r in opened]
    assert {r["lane_epoch"] for r in opened} != {r["lane_epoch"] for r in settled}
    only_the_former_knew = ("dispatched_at", "size", "cost")
    assert all(r[key] is not None for r in opened for key in only_the_former_knew)
    assert {r[key] for r in settled for key in only_the_former_knew} == {None}


async def test_a_failure_of_a_parked_message_under_the_next_leader_says_where_it_came_from(
    bench: Bench, ledger: Ledger, tmp_path: Path
) -> None:
    bench.ledger = ledger
    await bench.run(orders=lane(park_after="200ms"))
    (await bench.client()).send("in", b"1", "g")
    await eventually(lambda: bench.counter("parked") == 1)
    consumer = await bench.joined("c1", hold=True)
    await consumer.has(1)
    await bench.crash()
    await bench.run(orders=lane(park_after="200ms"))
    await eventually(lambda: bench.status()["inbound"][0]["in_flight"] == 1, what="its original to be back")
    consumer.fail(consumer.received[0].seq, "no such customer")
    await eventually(lambda: bench.counter("dead_lettered") == 1)
    await bench.stop()
    assert ledger.stop(TIMEOUT_S)
    found = reading.records(tmp_path / "ledger")
    parked, failed = (
        reading.one([r for r in found if r["event"] == event]) for event in ("parked", "failed")
    )
    name = ("inbound", "arrival_epoch", "arrival", "group")
    assert [failed[key] for key in name] == [parked[key] for key in name] != [None] * 4


async def test_what_waited_for_what(bench: Bench, ledger: Ledger, tmp_path: Path) -> None:
    bench.ledger = ledger
    await bench.run(orders=lane())
    client = await bench.client()
    client.send("in", b"1", "g")
    await eventually(lambda: bench.status()["held"] == 1)
    consumer = await bench.joined("c1", prefetch=1, hold=True)
    await consumer.has(1)
    client.send("in", b"2", "g")
    await eventually(lambda: bench.status()["held"] == 1)
    consumer.settle([consumer.received[0].seq])
    await consumer.has(2)
    await bench.ask("groups.pause", group="g")
    client.send("in", b"3", "g")
    await eventually(lambda: bench.status()["held"] == 1)
    consumer.settle([consumer.received[1].seq])
    await eventually(lambda: bench.status()["in_flight"] == 0)
    await bench.ask("groups.resume", group="g")
    await consumer.has(3)
    consumer.release()
    await bench.acked()
    client.send("in", b"4", "g")
    await consumer.has(4)
    await bench.acked()
    await bench.stop()
    assert ledger.stop(TIMEOUT_S)
    settled = reading.records(tmp_path / "ledger", "settled")
    assert [r["wait_cause"] for r in settled] == ["consumer", "window", "paused", None]


async def test_parked_messages_keep_their_place(bench: Bench, ledger: Ledger, tmp_path: Path) -> None:
    bench.ledger = ledger
    await bench.run(orders=lane(park_after="200ms"))
    client = await bench.client()
    for number in range(3):
        client.send("in", b"%d" % number, "g", type_=b"invoice")
    await eventually(lambda: bench.counter("parked") == 3)
    consumer = await bench.joined("c1")
    await consumer.has(3)
    await eventually(lambda: bench.counter("settled") == 3)
    await bench.stop()
    assert ledger.stop(TIMEOUT_S)
    found = reading.records(tmp_path / "ledger")
    parked = [r for r in found if r["event"] == "parked"]
    settled = [r for r in found if r["event"] == "settled"]
    assert [r["arrival"] for r in settled] == [r["arrival"] for r in parked]
    assert {r["type"] for r in (*parked, *settled)} == {"invoice"}
    assert [(r["wait_cause"], r["inbound"]) for r in settled] == [("parked", "in")] * 3
    assert {r["queue"] for r in settled} == {f"{bench.names().exchange}.park.1"}
    assert reading.one([r for r in found if r["event"] == "group_parked"])["group"] == "g"
