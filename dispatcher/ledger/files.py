"""One leadership's files: records gathered, numbered, and written as a whole."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from dispatcher.ledger.rows import arrow_schema, record_batch, row
from dispatcher.ledger.rows import columns as columns_of
from dispatcher.ledger.schema import SCHEMA_VERSION, Event
from dispatcher.ledger.store import FAILURES, Store

#: A record in a file that is not written yet.
BYTES_PER_ROW: Final = 256


class FileWriter:
    """Numbers records and puts them into files. `begun_us` is None while nothing is gathered.

    A file that can't be written is given up: its records are counted, and their numbers are missing.
    """

    def __init__(self, store: Store, *, lane: str, writer: str, lane_epoch: int) -> None:
        self._store = store
        self._lane, self._writer, self._lane_epoch = lane, writer, lane_epoch
        self._batches: list[pa.RecordBatch] = []
        self._next = 1  # the number of the next record
        self._lost = 0  # records that the store did not take since it last took any
        self.begun_us: int | None = None
        self.rows = 0

    @property
    def last(self) -> int:
        """The number of the latest record."""
        return self._next - 1

    def leave_out(self, last: int, count: int) -> None:
        """Records up to that number are in other files, and the next `count` in none."""
        self._next = last + max(1, count) + 1

    def add(self, columns: list[pa.Array], now_us: int) -> None:
        """Gather records by their columns."""
        if self.begun_us is None:
            self.begun_us = now_us
            if self._lost:
                lost, self._lost = self._lost, 0
                self.add(
                    columns_of([row(now_us, Event.RECORDS_DROPPED, messages=lost, reason="not written")]),
                    now_us,
                )
        batch = record_batch(columns, self._next, self._writer, self._lane_epoch)
        self._batches.append(batch)
        self._next += len(batch)
        self.rows += len(batch)

    def close(self, last_commit: int = 0) -> int:
        """Write the gathered records; returns the file's size in bytes. Raises one of the store's FAILURES.
        `last_commit`: the records tell of all commits of the lane up to that one; 0: not known."""
        if self.begun_us is None:
            return 0
        batches, rows, begun_us = self._batches, self.rows, self.begun_us
        self._batches, self.rows, self.begun_us = [], 0, None
        first = self._next - rows
        schema = arrow_schema({
            "schema_version": str(SCHEMA_VERSION), "lane": self._lane, "writer": self._writer,
            "lane_epoch": str(self._lane_epoch), "first_ordinal": str(first),
            "last_ordinal": str(self._next - 1), "last_commit": str(last_commit),
        })  # fmt: skip
        try:
            table = pa.Table.from_batches(batches).replace_schema_metadata(schema.metadata)
            date = day_of(begun_us)
            return self._store.write(self._lane, date, f"{self._writer}-{first:012d}", table)
        except FAILURES:
            self._lost += rows
            raise


def day_of(time_us: int) -> str:
    """The day (UTC) of an instant, as the folders have it."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).date().isoformat()
