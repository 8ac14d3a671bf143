"""A stream beside a ledger that is being written: new lanes, days and leaders, damage, and its end."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dispatcher.pipeline.live_folder import KEPT, live_folder
from dispatcher.pipeline.stream import Stream, StreamOptions
from dispatcher.pipeline.stream_batch import RetentionLimits
from dispatcher.pipeline.stream_reading import LedgerLocation
from tests.pipeline.ledgers import MS, START_US, Leader, Numbers
from tests.pipeline.planted_violations import hand
from tests.pipeline.streams import HOUR_US, rows
from tests.waiting import wait_until

#: For an alert, beside others that use both cores. A file is told of with the next batch.
PATIENCE_S = 200.0
DAY_MS = 86_400_000
#: Its folder has another name, and Spark has a third one for that.
LANE = "über/50%+ a"


def alerts(live: Path) -> list[dict[str, Any]]:
    return rows(live, "alerts") if (live / "alerts").exists() else []


def awaited(live: Path, lane: str, kind: str) -> dict[str, Any]:
    def found() -> list[dict[str, Any]]:
        return [each for each in alerts(live) if (each["lane"], each["kind"]) == (lane, kind)]

    return wait_until(found, PATIENCE_S, f"a {kind} of {lane}")[0]


def write_while_it_runs(ledger: Path, live: Path) -> None:
    """Each step waits for what the stream makes of the one before."""
    numbers, leader = Numbers(), Leader(ledger, LANE)
    hands = [numbers.number(each) for each in (
        hand(1, 0, None), hand(3, 1, 2), hand(2, 11_000, 11_001),
        hand(1, 2 * DAY_MS, None, "i2", attempt=2),
    )]  # fmt: skip
    leader.tell(hands[0].begun())
    leader.hand(hands[1])
    leader.close(START_US + 10_500 * MS)
    wait_until((live / "current").exists, PATIENCE_S)
    # On another day, out of order.
    leader.hand(hands[2])
    leader.close()
    assert awaited(live, LANE, "violation")["other_arrival"] == 3
    # Another lane, of which a file is damaged inside and one is none.
    elsewhere, numbers = ledger.parent / "elsewhere", Numbers()
    other = Leader(elsewhere, "second")
    other.hand(*(numbers.number(hand(n, n, n + 1)) for n in range(1, 2_000)))
    other.close()
    (file,) = (elsewhere / "lane=second").rglob("*.parquet")
    place = pq.ParquetFile(file).metadata.row_group(0).column(4).data_page_offset
    content = bytearray(file.read_bytes())
    content[place : place + 200] = bytes(200)
    file.write_bytes(content)
    file.with_name("stray.txt").write_text("not ours")
    (elsewhere / "lane=second").rename(ledger / "lane=second")
    wait_until(lambda: len([each for each in alerts(live) if each["kind"] == "file"]) == 2, PATIENCE_S)
    # The next leader: its predecessor's last file is missing, and what i1 had is not known to have ended.
    second = Leader(ledger, LANE, 8, 7, START_US + 2 * DAY_MS * MS - MS)
    second.tell(hands[3].begun())
    second.close()
    gap = awaited(live, LANE, "gap")
    assert gap["rule"] == "no_end"


@pytest.mark.timeout(300)
def test_alerts_come_while_the_ledger_is_written(spark: SparkSession, tmp_path: Path) -> None:
    assert threading.current_thread() is threading.main_thread()
    ledger, live = tmp_path / "ledger", tmp_path / "live"
    ledger.mkdir()

    def write_then_stop() -> None:
        try:
            write_while_it_runs(ledger, live)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    place = LedgerLocation(str(ledger))
    options = StreamOptions(100, False, 500, RetentionLimits(HOUR_US, 24 * HOUR_US))
    with live_folder(live, None, place.url) as folder, ThreadPoolExecutor(1) as writers:
        stream = Stream(spark, place, folder, options)
        writing = writers.submit(write_then_stop)
        stream.run()
        writing.result()
    found = {(each["lane"], each["kind"], each["rule"], each["arrival"]) for each in alerts(live)}
    assert found >= {
        (LANE, "violation", "order", 2), (LANE, "gap", "no_end", None), ("second", "file", None, None),
    }  # fmt: skip
    assert [each["arrival"] for each in alerts(live) if each["kind"] == "violation"] == [2]
    problems = {Path(each["path"]).suffix: each["problem"] for each in rows(live, "current/files.parquet")}
    assert problems.keys() == {".parquet", ".txt"}
    assert problems[".parquet"].startswith("is damaged inside: ")
    # A day is more than an hour: of what was over nothing is kept any more.
    left = {(each["lane"], each["arrival"]) for each in rows(live, f"current/{KEPT}")}
    assert left == {(LANE, 1)}
