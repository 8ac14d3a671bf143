"""Lanes that ran, with deaths, a failure, parking and a move: their ledger says what their consumers saw.

All lanes are in one ledger, and one run of the pipeline reads it: most of its time is Spark's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from bench.pipeline import by_duckdb
from dispatcher.client import GroupConsumer, Message
from dispatcher.ledger.writer import Ledger
from dispatcher.nodes.servers import Servers
from dispatcher.pipeline.advise.advice_text import measured
from dispatcher.pipeline.advise.measures import percentile
from dispatcher.pipeline.advise.run import advise
from dispatcher.pipeline.advise.sweeps import Wanted
from dispatcher.pipeline.advise.traffic import Scenario
from dispatcher.settings import LedgerSettings
from tests.conftest import fresh_vhost
from tests.ledger import reading
from tests.once import once
from tests.pipeline.conftest import Report, _stage, run_pipeline
from tests.service.conftest import _plain_log
from tests.service.harness import Bench, DispatcherProcess, document, lane
from tests.service.reader import Reader
from tests.waiting import TIMEOUT_S, eventually

__all__ = ["_plain_log"]

#: Lanes.
DEATHS, READERS, KILLED, BUSY = "deaths", "readers", "killed", "busy"
HANDS_OVER = {
    "inbound": [{"queue": "in", "declare": True}], "handover": True,
    "consumers": [{"id": "one", "prefetch": 50}, {"id": "two", "prefetch": 50}],
}  # fmt: skip
#: For so long half of all messages, and one in a hundred, may be held up on a machine that has nothing else
#: to do. On a busy one it is how late handlers woke up (`Ran.late_us`), which is no work of the lane.
HALF_US, HICCUP_US = 1_000, 30_000
MESSAGES, GROUPS, EVERY_S, WORK_S, AT_A_TIME = 600, 40, 0.005, 0.03, 4


class Ran(NamedTuple):
    """What all lanes have left, and what the consumers of one saw."""

    report: Report
    copies: set[tuple[str, int]]  # consumer, seq
    late_us: list[int]  # of each message of BUSY: by how much its handler woke up too late; in order

    def rows(self, table: str, lane: str) -> list[dict[str, Any]]:
        return [each for each in self.report.rows(table) if each["lane"] == lane]


@pytest.fixture(scope="session")
def ran(spark: SparkSession, servers: Servers, common: Path) -> Ran:
    folder = common / "ran"

    def make() -> object:
        folder.mkdir()
        seen = asyncio.run(_run_all(servers, folder))
        return run_pipeline(spark, folder).summary, *seen

    summary, copies, late_us = once(common, "ran", make)
    return Ran(Report(folder / "report", summary), copies, late_us)


async def _run_all(servers: Servers, folder: Path) -> tuple[set[tuple[str, int]], list[int]]:
    """Each lane in a vhost of its own; returns `Ran.copies` and `Ran.late_us`."""
    ledger = Ledger(LedgerSettings(path=str(folder / "ledger")))
    ledger.start()
    with contextlib.ExitStack() as vhosts:
        benches = []
        for _ in range(4):
            bench = Bench(vhosts.enter_context(fresh_vhost(servers)))
            bench.ledger = ledger
            benches.append(bench)
        async with contextlib.AsyncExitStack() as running:
            for bench in benches:
                running.push_async_callback(bench.close)
            copies = await deaths(benches[0])
            await readers(benches[1])
            late_us = await busy(benches[2])
            assert ledger.stop(TIMEOUT_S)
            await killed(benches[3], folder)
    return copies, late_us


async def deaths(bench: Bench) -> set[tuple[str, int]]:
    """A consumer dies, then the leader."""
    settings = lane("high", "low", reconnect_grace=0)
    await bench.run(**{DEATHS: settings})
    client = await bench.client()
    for number in range(60):
        client.send(("high", "low")[number % 2], b"%d" % number, f"g{number % 6}")
    first = await bench.joined("c1", DEATHS, prefetch=10, hold=True)
    await first.has(10)
    first.fail(first.received[0].seq, "no such customer", attempts=2)
    await first.confirmed()
    second = await bench.joined("c2", DEATHS, prefetch=10, hold=True)
    await first.drop()
    await second.has(10)
    await bench.crash(DEATHS)
    await bench.run(**{DEATHS: settings})
    second.release()
    await bench.acked("high", DEATHS)
    await bench.acked("low", DEATHS)
    await bench.stop(DEATHS)
    return {(consumer.id, copy.seq) for consumer in (first, second) for copy in consumer.received}


def test_a_real_lane_is_kept_over_deaths_and_a_new_leader(ran: Ran) -> None:
    assert ran.report.rows("violations") == []
    assert [gap["kind"] for gap in ran.rows("gaps", DEATHS)] == ["begins"]
    assert ran.report.summary["lanes"][DEATHS]["verdict"] == "kept", ran.report.summary
    messages = ran.rows("lifecycle", DEATHS)
    outcomes = Counter(each["outcome"] for each in messages)
    assert outcomes.pop("returned") > 0  # the former leader had them, and the next one got them anew
    assert outcomes == {"settled": 59, "dead_lettered": 1}
    (dead,) = (each for each in messages if each["outcome"] == "dead_lettered")
    assert [dead["reason"], dead["calls"], dead["consumers"]] == ["no such customer", 2, ["c1"]]
    again = [each for each in messages if (each["attempts"] or 0) > 1]
    assert {tuple(each["consumers"]) for each in again} == {("c1", "c2")}
    assert {(each["consumer"], each["seq"]) for each in ran.rows("hand_overs", DEATHS)} == ran.copies
    assert sum(each["hand_overs"] for each in messages) == len(ran.copies)
    assert all(each["wait_retry_us"] is not None for each in again)
    told = {each["consumer"]: each for each in ran.rows("incarnations", DEATHS)}
    assert {name: (each["prefetch"], each["ended_at"] is None) for name, each in told.items()} == {
        "c1": (10, False),
        "c2": (10, True),
    }
    assert told["c1"]["joined_at"] < told["c2"]["joined_at"] < told["c1"]["ended_at"]
    options = [json.loads(each["options"]) for each in ran.rows("options", DEATHS)]
    shown = [(each["policy"], each["grouped"], each["tops_up"], len(each["inbounds"])) for each in options]
    assert shown == [("exclusive", True, True, 2)] * 2
    assert not any("consumers" in each for each in options)


async def readers(bench: Bench) -> None:
    """What a reader left in its queue goes to the next one."""
    await bench.run(**{READERS: HANDS_OVER})
    client, names = await bench.client(), bench.names(READERS)
    one = await Reader.open(bench.rabbitmq, names.consumer("one"), acks=False)
    for number in range(6):
        client.send("in", b"%d" % number, "g")
    await one.has(6)
    await bench.acked("in", READERS)
    two = await Reader.open(bench.rabbitmq, names.consumer("two"))
    await eventually(lambda: _live(bench, 2), what="both readers seen")
    for delivery in one.received[:2]:
        one.ack(delivery)
    one.reject(one.received[2])
    await one.heard()
    await client.has_ready(names.dead, 1)
    one.die()
    await two.has(3)
    await eventually(lambda: _live(bench, 1), what="the end of what was read back")
    client.send("in", b"6", "g")
    await two.has(4)
    await bench.acked("in", READERS)
    await bench.stop(READERS)
    two.die()


def test_duckdb_makes_the_same_tables_of_real_lanes(ran: Ran, tmp_path: Path) -> None:
    by_duckdb.make(ran.report.folder.parent / "ledger", tmp_path / "tables")
    assert by_duckdb.differences(ran.report.folder, tmp_path / "tables") == []
    assert by_duckdb.violation_differences(ran.report.folder, tmp_path / "tables") == []


def test_what_a_reader_left_in_its_queue_is_followed_to_the_next_one(ran: Ran) -> None:
    groups = [(row["group"], row["verdict"], row["hand_overs"]) for row in ran.rows("groups", READERS)]
    assert groups == [("g", "kept", 10)]
    messages = sorted(ran.rows("lifecycle", READERS), key=lambda row: row["arrival"])
    assert [(m["outcome"], m["consumers"]) for m in messages] == [
        ("settled", ["one"]), ("settled", ["one"]), ("dead_lettered", ["one"]), ("settled", ["one", "two"]),
        ("settled", ["one", "two"]), ("settled", ["one", "two"]), ("settled", ["two"]),
    ]  # fmt: skip


async def _live(bench: Bench, count: int) -> bool:
    rows = (await bench.ask("consumers.list", READERS))["consumers"]
    return len(rows) == count and all(row["state"] == "live" for row in rows)


async def killed(bench: Bench, folder: Path) -> None:
    """The process that writes the ledger stands still, so all since its last file is lost with the leader."""
    vhost, ledger = bench.vhost, folder / "ledger"
    settings = document(vhost.amqp_url, vhost.redis_url, vhost.redis_prefix, {KILLED: lane()})
    settings |= {"ledger": {"path": str(ledger), "file_age": "100ms"}}
    with contextlib.ExitStack() as processes:

        def started(name: str) -> DispatcherProcess:
            process = DispatcherProcess(folder, name, settings)
            processes.callback(process.close)
            process.start()
            process.ready()
            return process

        first = started("one")
        client = await bench.client()
        one = await bench.joined("c1", KILLED, prefetch=40)
        two = await bench.joined("c2", KILLED, prefetch=40)
        for number in range(20):
            client.send("in", b"%d" % number, f"g{number % 10}")
        await eventually(lambda: _told(ledger, "settled") == 20, what="files with all of that")
        (writer,) = _children(first.pid)
        os.kill(writer, signal.SIGSTOP)
        for number in range(20, 40):
            client.send("in", b"%d" % number, f"g{5 + number % 10}")
        await eventually(lambda: len(one.received) + len(two.received) == 40, what="all to be handed over")
        in_flight = f'dispatcher_messages_in_flight{{lane="{KILLED}"}} '
        await eventually(lambda: f"{in_flight}0.0" in first.get("/metrics")[1], what="all to be settled")
        one.hold()
        two.hold()
        client.send("in", b"40", "g0")
        await eventually(lambda: f"{in_flight}1.0" in first.get("/metrics")[1], what="the last one")
        first.kill9()
        os.kill(writer, signal.SIGKILL)
        second = started("two")
        one.release()
        two.release()
        await eventually(lambda: _told(ledger, "settled") == 41, what="all to be told")
        assert second.terminate()[0] == 0
    told = reading.one(reading.records(ledger / f"lane={KILLED}", "told_again"))
    assert json.loads(told["detail"])["missing"] == 0
    assert told["messages"] == 21


def _told(ledger: Path, event: str) -> int:
    return len(reading.records(ledger / f"lane={KILLED}", event))


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += map(int, (task / "children").read_text().split())
    return found


def test_what_a_killed_leader_told_nobody_is_known_from_its_journal(ran: Ran) -> None:
    assert {gap["kind"] for gap in ran.rows("gaps", KILLED)} == {"begins", "told_again"}
    assert {(r["group"], r["verdict"]) for r in ran.rows("groups", KILLED)} == {
        (f"g{number}", "kept") for number in range(15)
    }
    assert sum(r["hand_overs"] for r in ran.rows("groups", KILLED)) == 41
    assert Counter(each["outcome"] for each in ran.rows("lifecycle", KILLED)) == {"settled": 41}


async def busy(bench: Bench) -> list[int]:
    """Two consumers of the SDK under a load that makes messages wait; returns `Ran.late_us`."""
    await bench.run(**{BUSY: lane("in")})
    consumers = [
        GroupConsumer(bench.vhost.amqp_url, BUSY, f"c{n}", 10, prefix=bench.vhost.redis_prefix)
        for n in range(2)
    ]
    random, late_us = Random(3), list[int]()
    now_s = asyncio.get_running_loop().time

    async def work(message: Message) -> None:
        ends_s = now_s() + float(message.body)
        await asyncio.sleep(float(message.body))  # sleeps: a slow handler
        late_us.append(round(1e6 * (now_s() - ends_s)))

    tasks = [
        asyncio.create_task(each.run(work, concurrency=AT_A_TIME, stop_on_signals=False))
        for each in consumers
    ]
    await eventually(lambda: bench.status(BUSY)["consumers"] == 2, what="two consumers")
    client = await bench.client()
    for _ in range(MESSAGES):
        client.send("in", b"%.6f" % random.expovariate(1 / WORK_S), f"g{random.randrange(GROUPS)}")
        await asyncio.sleep(random.expovariate(1 / EVERY_S))  # sleeps: load
    await eventually(lambda: len(late_us) == MESSAGES, what="everything done")
    await bench.acked("in", BUSY)
    for each in consumers:
        each.stop()
    await asyncio.gather(*tasks)
    await bench.stop(BUSY)
    return sorted(late_us)


def test_a_simulation_of_what_ran_waits_as_long(spark: SparkSession, ran: Ran) -> None:
    """With the options that the lane ran with."""
    wanted = Wanted(consumers=(2,), prefetch=(10,), buckets=(None,), policies=("exclusive",))
    (found,), _ = advise(spark, ran.report.folder, [BUSY], wanted, None, _stage)
    assert found.advice.current == Scenario(2, 10, "exclusive", (1,), None)
    assert AT_A_TIME - 1 <= found.advice.traffic.at_a_time <= AT_A_TIME + 2
    now = found.advice.found[found.advice.current]
    half_us = HALF_US + 2 * percentile(ran.late_us, 50)
    hiccup_us = HICCUP_US + 2 * ran.late_us[-1]
    alike(now.dispatch_p50_us, measured(found.sample)[0], half_us)
    alike(now.dispatch_p99_us, measured(found.sample)[1], hiccup_us)
    total_us = sorted(row["settled_us"] - row["at_us"] for row in found.sample.messages)
    alike(now.total_p99_us, percentile(total_us, 99), hiccup_us)


def alike(simulated_us: float | None, measured_us: float | None, hiccup_us: float) -> None:
    """Within a factor of two, but for the machine's own hiccups: these are in the ledger, not simulated."""
    assert simulated_us is not None
    assert measured_us is not None
    low, high = sorted((simulated_us, measured_us))
    assert high <= 2 * low + hiccup_us, (simulated_us, measured_us, hiccup_us)
