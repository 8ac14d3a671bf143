"""The ledger of a hand-over lane: what was read back from a queue, and what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dispatcher.ledger.writer import Ledger
from tests.ledger import reading
from tests.service.harness import Bench
from tests.service.reader import Reader
from tests.waiting import TIMEOUT_S, eventually


def _lane(*consumers: str) -> dict[str, Any]:
    named = [{"id": name, "prefetch": 50} for name in consumers]
    return {"inbound": [{"queue": "in", "declare": True}], "handover": True, "consumers": named}


async def test_what_is_read_back_is_handed_over_again_to_the_ledger_too(
    bench: Bench, ledger: Ledger, tmp_path: Path
) -> None:
    bench.ledger = ledger
    await bench.run(orders=_lane("one", "two"))
    one = await Reader.open(bench.rabbitmq, bench.names().consumer("one"), acks=False)
    client = await bench.client()
    for number in range(5):
        client.send("in", b"%d" % number, "g")
    await one.has(5)
    await bench.acked()
    two = await Reader.open(bench.rabbitmq, bench.names().consumer("two"))

    async def is_there() -> bool:
        rows = (await bench.ask("consumers.list"))["consumers"]
        return sum(row["state"] == "live" for row in rows) == 2

    await eventually(is_there, what="both readers seen")
    one.ack(one.received[0])
    one.reject(one.received[1])
    await one.heard()
    await client.has_ready(bench.names().dead, 1)
    one.die()
    await two.has(3)

    async def is_over() -> bool:
        return not any(row["consumer"] == "one" for row in (await bench.ask("consumers.list"))["consumers"])

    await eventually(is_over, what="the end of what was read back")
    await bench.stop()
    two.die()
    assert ledger.stop(TIMEOUT_S)
    found = reading.records(tmp_path / "ledger")
    first = [r for r in found if r["event"] == "settled" and r["consumer"] == "one"]
    again = [r for r in found if r["event"] == "settled" and r["consumer"] == "two"]
    back = [r for r in found if r["event"] == "read_back"]
    place = ("inbound", "arrival_epoch", "arrival", "group", "dispatch_id")
    assert [[r[name] for name in place] for r in again] == [[r[name] for name in place] for r in first[2:]]
    assert [[r[name] for name in place] for r in back] == [[r[name] for name in place] for r in first[2:]]
    assert [(r["incarnation"], r["seq"]) for r in back] == [(r["incarnation"], r["seq"]) for r in first[2:]]
    assert [(r["attempt"], r["group_seq"], r["wait_cause"]) for r in again] == [
        (2, number, "retry") for number in (1, 2, 3)
    ]
    assert len({r["epoch"] for r in again}) == 1
    assert again[0]["epoch"] > first[0]["epoch"]
    for record, read in zip(again, back, strict=True):
        times = [record[name] for name in ("received_at", "dispatched_at", "committed_at", "confirmed_at")]
        assert read["time"] == times[0]
        assert times == sorted(times)
    dead = reading.one([r for r in found if r["event"] == "dead_lettered"])
    assert [dead[name] for name in place] == [first[1][name] for name in place]
    assert dead["reason"] == "rejected"
    taken = reading.one([r for r in found if r["event"] == "consumer_taken_back"])
    assert taken["incarnation"] == first[0]["incarnation"]
    assert taken["time"] <= again[0]["dispatched_at"]
