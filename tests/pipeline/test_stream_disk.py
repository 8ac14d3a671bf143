"""A disk that takes no more: a line that says so, nothing half done, and all of it once there is room."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.session import java_process
from tests.pipeline.conftest import run_pipeline
from tests.pipeline.ledgers import Leader, Numbers
from tests.pipeline.planted_violations import hand
from tests.pipeline.streams import catch_up, rows, told

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def java(spark: SparkSession) -> int:
    """The process of the session that all tests share, with the compressors' native libraries loaded.

    Each is unpacked into a file at its first use. Where that fails, on a disk that is full, its class stays
    broken as long as the process lives, for all tests that come later.
    """
    java = spark._jvm  # type: ignore[attr-defined]
    java.com.github.luben.zstd.util.Native.load()
    java.net.jpountz.lz4.LZ4Factory.nativeInstance()
    java.org.xerial.snappy.Snappy.getNativeLibraryVersion()
    process = java_process(spark)
    assert process is not None
    return process


@contextlib.contextmanager
def files_end_at(count: int, process: int) -> Iterator[None]:
    """No file of that process may become larger than so many bytes, as on a disk that is full."""
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def refused(spark: SparkSession, ledger: Path, live: Path, process: int, count: int) -> None:
    line = rf"^File too large: the tables in {live}, or Spark's own files, can't be written: make room, and"
    with files_end_at(count, process), pytest.raises(ConfigurationError, match=line):
        catch_up(spark, ledger, live)


def test_a_stream_goes_on_exactly_once_when_there_is_room_again(
    spark: SparkSession, java: int, tmp_path: Path
) -> None:
    ledger, live = tmp_path / "ledger", tmp_path / "live"
    leader, numbers = Leader(ledger), Numbers()
    # What is in somebody's hands, and two out of order: one in each file, the second against the first.
    leader.hand(*(numbers.number(hand(n, at, at + 1)) for at, n in enumerate((1, 3, 2))))
    leader.close()
    catch_up(spark, ledger, live)
    leader.hand(*(numbers.number(hand(n, at, at + 1)) for at, n in enumerate((9, 8), 10)))
    leader.end()
    for process, count in ((java, 0), (java, 1_000), (os.getpid(), 0)):
        refused(spark, ledger, live, process, count)
        assert [each["arrival"] for each in rows(live, "alerts")] == [2]
        assert (live / "current").resolve().name == "000000000000"
    catch_up(spark, ledger, live)
    assert (live / "current").resolve().name == "000000000001"
    undisturbed = tmp_path / "undisturbed"
    catch_up(spark, ledger, undisturbed)
    assert told(rows(live, "alerts")) == told(rows(undisturbed, "alerts"))
    assert [each["arrival"] for each in rows(live, "alerts")] == [2, 8]
    for table in ("lane_minutes", "consumers", "gaps"):
        name = f"current/{table}.parquet"
        assert rows(live, name) == rows(undisturbed, name)


def test_a_run_says_so_too(spark: SparkSession, java: int, tmp_path: Path) -> None:
    leader, numbers = Leader(tmp_path / "ledger"), Numbers()
    leader.hand(numbers.number(hand(1, 0, 1)))
    leader.end()
    line = r"^File too large: the report"
    for process in (java, os.getpid()):
        with files_end_at(0, process), pytest.raises(ConfigurationError, match=line):
            run_pipeline(spark, tmp_path)
        assert not (tmp_path / "report" / "summary.json").exists()
