"""A ledger read back, as its readers do by docs/ledger.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

Record = dict[str, Any]


def files(folder: Path) -> list[Path]:
    """The whole files of a ledger, by their names."""
    return sorted(path for path in folder.rglob("*.parquet") if not path.name.startswith("."))


def records(folder: Path, *events: str) -> list[Record]:
    """All records, or those of these events, by writer and ordinal."""
    found: list[Record] = []
    for path in files(folder):
        found += pq.read_table(path, partitioning=None).to_pylist()
    found.sort(key=lambda record: (record["lane_epoch"], record["writer"], record["ordinal"]))
    return [record for record in found if not events or record["event"] in events]


def one(found: list[Record]) -> Record:
    """The only record of a list."""
    assert len(found) == 1, found
    return found[0]


def dataset(folder: Path) -> pa.Table:
    """The ledger as one table, with the columns that its folders name."""
    return ds.dataset(folder, partitioning="hive").to_table()
