"""Where the files are, what becomes of old ones, and what happens when nothing can be written."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dispatcher.errors import ConfigurationError
from dispatcher.ledger.files import FileWriter
from dispatcher.ledger.retention import LEFTOVER_S, Retention
from dispatcher.ledger.rows import columns, row
from dispatcher.ledger.store import Store
from dispatcher.settings import LedgerSettings
from tests.ledger import reading

NOW_US = 1_795_329_000_000_000


def write(store: Store, lane: str = "orders", records: int = 3, writer: str = "7-ab") -> FileWriter:
    files = FileWriter(store, lane=lane, writer=writer, lane_epoch=7)
    files.add(columns([row(NOW_US, "closed", group=f"g{n}") for n in range(records)]), NOW_US)
    files.close()
    return files


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_path_and_a_url_name_the_same_place(tmp_path: Path, prefix: str) -> None:
    write(Store(f"{prefix}{tmp_path}/ledger"), lane="orders.eu")
    (path,) = reading.files(tmp_path)
    name = "lane=orders.eu/date=2026-11-22/7-ab-000000000001.parquet"
    assert path == tmp_path / "ledger" / name
    metadata = pq.read_schema(path).metadata
    assert {key: metadata[b"dispatcher.ledger." + key] for key in (b"schema_version", b"last_ordinal")} == {
        b"schema_version": b"1", b"last_ordinal": b"3",
    }  # fmt: skip
    table = reading.dataset(tmp_path / "ledger")
    assert table["lane"].to_pylist() == ["orders.eu"] * 3
    assert table["schema_version"].to_pylist() == [1] * 3


def test_a_lane_name_is_one_folder_whatever_is_in_it(tmp_path: Path) -> None:
    write(Store(str(tmp_path)), lane="a/../b=c")
    assert [path.name for path in tmp_path.iterdir()] == ["lane=a%2F..%2Fb%3Dc"]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nosuch://bucket/x", "ledger.path: Unrecognized filesystem type"),
        ("/proc/nothing/here", "ledger.path: can't write to /proc/nothing/here: No such file or directory"),
    ],
)
def test_a_place_that_can_not_be_written_to_is_one_line(path: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Store(path).try_out()
    (line,) = refused.value.problems
    assert line.startswith(problem)


def test_the_oldest_files_go_first_by_age_and_by_size(tmp_path: Path) -> None:
    store, now_s = Store(str(tmp_path)), time.time()
    for age, name in ((300, "old"), (200, "older-half"), (100, "new")):
        write(store, writer=name)
        (path,) = [path for path in reading.files(tmp_path) if path.name.startswith(f"{name}-")]
        os.utime(path, (now_s - age, now_s - age))
    (tmp_path / "somebody.elses").write_text("not ours")
    size = max(path.stat().st_size for path in reading.files(tmp_path))
    Retention(store, LedgerSettings(path="-", max_age_ms=250_000)).look(now_s)
    assert [path.name[:3] for path in reading.files(tmp_path)] == ["new", "old"]
    Retention(store, LedgerSettings(path="-", max_bytes=size + 10)).look(now_s)
    assert [path.name[:3] for path in reading.files(tmp_path)] == ["new"]
    Retention(store, LedgerSettings(path="-", max_age_ms=None, max_bytes=None)).look(now_s + 1e9)
    assert len(reading.files(tmp_path)) == 1
    assert (tmp_path / "somebody.elses").exists()


def test_what_a_crash_left_is_deleted_when_it_is_old(tmp_path: Path) -> None:
    store, now_s = Store(str(tmp_path)), time.time()
    write(store)
    (whole,) = reading.files(tmp_path)
    for name, age in ((".a.parquet", LEFTOVER_S + 60), (".b.parquet", 60)):
        (whole.parent / name).write_bytes(b"half")
        os.utime(whole.parent / name, (now_s - age, now_s - age))
    Retention(store, LedgerSettings(path="-")).look(now_s)
    assert sorted(path.name for path in whole.parent.iterdir()) == [".b.parquet", whole.name]


@pytest.fixture
def no_large_files() -> Iterator[None]:
    """No file may become larger than some bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.usefixtures("no_large_files")
def test_what_a_full_disk_does_not_take_is_told_in_the_next_file(tmp_path: Path) -> None:
    files = FileWriter(Store(str(tmp_path)), lane="orders", writer="7-ab", lane_epoch=7)
    files.add(columns([row(NOW_US, "closed", group=os.urandom(20).hex()) for _ in range(2_000)]), NOW_US)
    with pytest.raises((OSError, pa.ArrowException)):
        files.close()
    assert [path.name for path in tmp_path.rglob("*.parquet")] == []
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    files.add(columns([row(NOW_US, "closed", group="g")]), NOW_US)
    files.close()
    told, rest = reading.records(tmp_path)
    assert (told["event"], told["messages"], told["reason"]) == ("records_dropped", 2_000, "not written")
    assert [told["ordinal"], rest["ordinal"]] == [2_001, 2_002]


def test_a_store_without_rename_gets_whole_objects() -> None:
    store = Store("mock:///ledger")
    store.try_out()
    write(store)
    (file,) = store.files()
    assert file.is_whole
    assert file.path.endswith("lane=orders/date=2026-11-22/7-ab-000000000001.parquet")
