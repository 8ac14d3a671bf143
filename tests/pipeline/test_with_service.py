"""A lane that ran, with deaths, a failure, parking and a move: its ledger says what its consumers saw."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from dispatcher.ledger.writer import Ledger
from dispatcher.settings import LedgerSettings
from tests.ledger import reading
from tests.pipeline.conftest import run_pipeline
from tests.service.conftest import Starter, _plain_log, bench, dispatcher_process
from tests.service.harness import Bench, lane
from tests.service.reader import Reader
from tests.waiting import eventually

__all__ = ["_plain_log", "bench", "dispatcher_process"]

HANDS_OVER = {
    "inbound": [{"queue": "in", "declare": True}], "handover": True,
    "consumers": [{"id": "one", "prefetch": 50}, {"id": "two", "prefetch": 50}],
}  # fmt: skip


async def test_a_real_lane_is_kept_over_deaths_and_a_new_leader(
    bench: Bench, spark: SparkSession, tmp_path: Path
) -> None:
    ledger = Ledger(LedgerSettings(path=str(tmp_path / "ledger")))
    ledger.start()
    bench.ledger = ledger
    settings = lane("high", "low", reconnect_grace=0)
    await bench.run(orders=settings)
    client = await bench.client()
    for number in range(60):
        client.send(("high", "low")[number % 2], b"%d" % number, f"g{number % 6}")
    first = await bench.joined("c1", prefetch=10, hold=True)
    await first.has(10)
    first.fail(first.received[0].seq, "no such customer", attempts=2)
    await first.confirmed()
    second = await bench.joined("c2", prefetch=10, hold=True)
    await first.drop()
    await second.has(10)
    await bench.crash()
    await bench.run(orders=settings)
    second.release()
    await bench.acked("high")
    await bench.acked("low")
    await bench.stop()
    assert ledger.stop(10)
    report = run_pipeline(spark, tmp_path)
    assert report.rows("violations") == []
    assert [gap["kind"] for gap in report.rows("gaps")] == ["begins"]
    assert report.summary["verdict"] == "kept", report.summary
    messages = report.rows("lifecycle")
    outcomes = Counter(each["outcome"] for each in messages)
    assert outcomes.pop("returned") > 0  # the former leader had them, and the next one got them anew
    assert outcomes == {"settled": 59, "dead_lettered": 1}
    (dead,) = (each for each in messages if each["outcome"] == "dead_lettered")
    assert [dead["reason"], dead["calls"], dead["consumers"]] == ["no such customer", 2, ["c1"]]
    again = [each for each in messages if (each["attempts"] or 0) > 1]
    assert {tuple(each["consumers"]) for each in again} == {("c1", "c2")}
    copies = {(consumer.id, copy.seq) for consumer in (first, second) for copy in consumer.received}
    assert {(each["consumer"], each["seq"]) for each in report.rows("hand_overs")} == copies
    assert sum(each["hand_overs"] for each in messages) == len(copies)
    assert all(each["wait_retry_us"] is not None for each in again)
    told = {each["consumer"]: each for each in report.rows("incarnations")}
    assert {name: (each["prefetch"], each["ended_at"] is None) for name, each in told.items()} == {
        "c1": (10, False),
        "c2": (10, True),
    }
    assert told["c1"]["joined_at"] < told["c2"]["joined_at"] < told["c1"]["ended_at"]
    options = [json.loads(each["options"]) for each in report.rows("options")]
    shown = [(each["policy"], each["grouped"], each["tops_up"], len(each["inbounds"])) for each in options]
    assert shown == [("exclusive", True, True, 2)] * 2
    assert not any("consumers" in each for each in options)


async def test_what_a_reader_left_in_its_queue_is_followed_to_the_next_one(
    bench: Bench, spark: SparkSession, tmp_path: Path
) -> None:
    ledger = Ledger(LedgerSettings(path=str(tmp_path / "ledger")))
    ledger.start()
    bench.ledger = ledger
    await bench.run(orders=HANDS_OVER)
    client = await bench.client()
    one = await Reader.open(bench.rabbitmq, bench.names().consumer("one"), acks=False)
    for number in range(6):
        client.send("in", b"%d" % number, "g")
    await one.has(6)
    await bench.acked()
    two = await Reader.open(bench.rabbitmq, bench.names().consumer("two"))
    await eventually(lambda: _live(bench, 2), what="both readers seen")
    for delivery in one.received[:2]:
        one.ack(delivery)
    one.reject(one.received[2])
    await one.heard()
    await client.has_ready(bench.names().dead, 1)
    one.die()
    await two.has(3)
    await eventually(lambda: _live(bench, 1), what="the end of what was read back")
    client.send("in", b"6", "g")
    await two.has(4)
    await bench.acked()
    await bench.stop()
    two.die()
    assert ledger.stop(10)
    report = run_pipeline(spark, tmp_path)
    assert [(r["group"], r["verdict"], r["hand_overs"]) for r in report.rows("groups")] == [("g", "kept", 10)]
    messages = sorted(report.rows("lifecycle"), key=lambda row: row["arrival"])
    assert [(m["outcome"], m["consumers"]) for m in messages] == [
        ("settled", ["one"]), ("settled", ["one"]), ("dead_lettered", ["one"]), ("settled", ["one", "two"]),
        ("settled", ["one", "two"]), ("settled", ["one", "two"]), ("settled", ["two"]),
    ]  # fmt: skip


async def _live(bench: Bench, count: int) -> bool:
    rows = (await bench.ask("consumers.list"))["consumers"]
    return len(rows) == count and all(row["state"] == "live" for row in rows)


async def test_what_a_killed_leader_told_nobody_is_known_from_its_journal(
    bench: Bench, dispatcher_process: Starter, spark: SparkSession, tmp_path: Path
) -> None:
    """The process that writes the ledger stands still, so all since its last file is lost with the leader."""
    folder = tmp_path / "ledger"
    changes = {"ledger": {"path": str(folder), "file_age": "100ms"}}
    first = dispatcher_process("one", changes=changes, orders=lane())
    first.ready()
    client = await bench.client()
    one, two = await bench.joined("c1", prefetch=40), await bench.joined("c2", prefetch=40)
    for number in range(20):
        client.send("in", b"%d" % number, f"g{number % 10}")
    await eventually(lambda: len(reading.records(folder, "settled")) == 20, what="files with all of that")
    (writer,) = _children(first.pid)
    os.kill(writer, signal.SIGSTOP)
    for number in range(20, 40):
        client.send("in", b"%d" % number, f"g{5 + number % 10}")
    await eventually(lambda: len(one.received) + len(two.received) == 40, what="all to be handed over")
    in_flight = 'dispatcher_messages_in_flight{lane="orders"} '
    await eventually(lambda: f"{in_flight}0.0" in first.get("/metrics")[1], what="all to be settled")
    one.hold()
    two.hold()
    client.send("in", b"40", "g0")
    await eventually(lambda: f"{in_flight}1.0" in first.get("/metrics")[1], what="the last one")
    first.kill9()
    os.kill(writer, signal.SIGKILL)
    second = dispatcher_process("two", changes=changes, orders=lane())
    second.ready()
    one.release()
    two.release()
    await eventually(lambda: len(reading.records(folder, "settled")) == 41, what="all to be told")
    assert second.terminate()[0] == 0
    told = reading.one(reading.records(folder, "told_again"))
    assert json.loads(told["detail"])["missing"] == 0
    assert told["messages"] == 21
    report = run_pipeline(spark, tmp_path)
    assert {gap["kind"] for gap in report.rows("gaps")} == {"begins", "told_again"}
    assert {(r["group"], r["verdict"]) for r in report.rows("groups")} == {
        (f"g{number}", "kept") for number in range(15)
    }
    assert sum(r["hand_overs"] for r in report.rows("groups")) == 41
    assert Counter(each["outcome"] for each in report.rows("lifecycle")) == {"settled": 41}


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
