"""The process that writes the ledger is killed and started again: what it had in no file is told as lost."""

from __future__ import annotations

import json
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.ledger import Traffic
from dispatcher.ledger.writer import Ledger
from dispatcher.settings import LedgerSettings
from tests.ledger import reading
from tests.service.harness import Bench, lane
from tests.waiting import TIMEOUT_S, eventually, wait_until


def _holes(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    numbers = [record["ordinal"] for record in found]
    return [(before, after) for before, after in pairwise(numbers) if after != before + 1]


async def test_a_killed_process_is_started_again_and_says_what_is_missing(
    bench: Bench, tmp_path: Path
) -> None:
    ledger = Ledger(LedgerSettings(path=str(tmp_path / "ledger"), file_age_ms=1_000))
    ledger.start()
    bench.ledger = ledger
    await bench.run(orders=lane())
    client = await bench.client()
    consumer = await bench.joined("c1")

    async def settled(count: int, *bodies: bytes) -> None:
        for body in bodies:
            client.send("in", body, "g")
        await consumer.has(count)
        await bench.acked()

    await settled(2, b"1", b"2")
    await eventually(lambda: ledger.counters("orders")["ledger_records"] > 5, what="a file")
    killed = ledger.pid
    os.kill(killed, signal.SIGSTOP)  # what is noted now comes into no file
    await settled(5, b"3", b"4", b"5")
    os.kill(killed, signal.SIGKILL)
    await eventually(lambda: ledger.pid != killed, what="another process")
    await settled(7, b"6", b"7")
    await bench.stop()
    assert ledger.stop(TIMEOUT_S)
    found = reading.records(tmp_path / "ledger")
    assert len({record["writer"] for record in found}) == 1
    assert [record["event"] for record in found].count("lane_started") == 1
    assert (found[-1]["event"], found[-1]["reason"]) == ("lane_ended", None)
    told = reading.one([record for record in found if record["event"] == "records_dropped"])
    assert told["reason"] == "ended"
    assert told["messages"] == ledger.counters("orders")["ledger_records_dropped"] >= 3
    assert [after for _, after in _holes(found)] == [told["ordinal"]]
    ended = [record for record in found if record["event"] == "settled"]
    assert [record["arrival"] for record in ended] == [1, 2, 6, 7]
    since_us = json.loads(told["detail"])["since_us"]
    before = max(record["time"] for record in found if record["ordinal"] < told["ordinal"])
    assert before.timestamp() * 1e6 <= since_us + 1 < told["time"].timestamp() * 1e6


def test_one_that_dies_before_its_first_file_loses_all_but_the_start(tmp_path: Path) -> None:
    ledger = Ledger(LedgerSettings(path=str(tmp_path)))
    ledger.start()
    keeper = ledger.recorder("orders")
    traffic = Traffic(keeper, 50)
    killed = ledger.pid
    os.kill(killed, signal.SIGSTOP)
    traffic.run(200, rate=1_000_000_000)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: ledger.pid != killed, what="another process")
    again = ledger.pid
    os.kill(again, signal.SIGKILL)  # that one too: nothing is counted twice
    wait_until(lambda: ledger.pid not in (killed, again), what="a third process")
    traffic.run(100, rate=1_000_000_000)
    keeper.ended(None)
    assert ledger.stop(TIMEOUT_S)
    found = reading.records(tmp_path)
    assert [record["event"] for record in found[:2]] == ["lane_started", "records_dropped"]
    assert _holes(found) == []
    assert found[1]["messages"] == ledger.counters("orders")["ledger_records_dropped"] > 200
    whole = [r for r in found if r["event"] == "settled" and r["dispatched_at"] is not None]
    assert len(whole) == 100
