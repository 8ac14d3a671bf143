"""Records as tuples, and how they become Arrow tables."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa

from dispatcher.ledger.schema import (
    COLUMNS,
    FILE_COLUMNS,
    METADATA_PREFIX,
    ORDINAL,
    RECORD_COLUMNS,
    SCHEMA_VERSION,
    ColumnKind,
)

#: The values of a record, in the order of RECORD_COLUMNS.
Row = tuple[Any, ...]
#: The columns' types in Arrow.
TYPES: Final = {
    ColumnKind.INSTANT: pa.timestamp("us", tz="UTC"),
    ColumnKind.INTEGER: pa.int64(),
    ColumnKind.SMALL: pa.int32(),
    ColumnKind.TEXT: pa.string(),
    ColumnKind.BYTES: pa.binary(),
}
PLACES: Final = {column.name: place for place, column in enumerate(RECORD_COLUMNS)}
_EMPTY: Final = (None,) * len(RECORD_COLUMNS)


def arrow_schema(metadata: dict[str, str] | None = None) -> pa.Schema:
    """The schema of every file of this version; the metadata's keys get the ledger's prefix."""
    fields = [pa.field(column.name, TYPES[column.kind]) for column in COLUMNS]
    return pa.schema(fields, {METADATA_PREFIX + key: value for key, value in (metadata or {}).items()})


def row(time_us: int, event: str, **values: Any) -> Row:
    """A rare record."""
    made: list[Any] = list(_EMPTY)
    made[0], made[1] = time_us, event
    for name, value in values.items():
        made[PLACES[name]] = value
    return tuple(made)


def detail(fields: dict[str, Any]) -> str | None:
    """The JSON of all values that have no column of their own."""
    return json.dumps(fields, separators=(",", ":"), default=str) if fields else None


def columns(rows: list[Row]) -> list[pa.Array]:
    """The columns of these records."""
    values = zip(*rows, strict=True)
    return [pa.array(each, TYPES[column.kind]) for column, each in zip(RECORD_COLUMNS, values, strict=True)]


def record_batch(columns: list[pa.Array], first_ordinal: int, writer: str, lane_epoch: int) -> pa.RecordBatch:
    """Records, numbered from `first_ordinal` on."""
    count = len(columns[0])
    constants = zip(FILE_COLUMNS, (SCHEMA_VERSION, writer, lane_epoch), strict=True)
    arrays = [pa.repeat(pa.scalar(value, TYPES[column.kind]), count) for column, value in constants]
    arrays.append(pa.array(range(first_ordinal, first_ordinal + count), TYPES[ORDINAL.kind]))
    return pa.RecordBatch.from_arrays([*arrays, *columns], schema=arrow_schema())
