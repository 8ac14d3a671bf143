"""Alerts: what a stream has to say at once, as rows of a table, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from dispatcher.pipeline.gaps import Gap
from dispatcher.pipeline.ledger_files import BadFile
from dispatcher.pipeline.order_audit import EVIDENCE
from dispatcher.pipeline.summary import about_violation
from dispatcher.wire import json_text
from dispatcher.wire.plain_text import printable

VIOLATION, GAP, FILE = "violation", "gap", "file"
_TYPES: Final = {
    "arrival_epoch": pa.int64(), "arrival": pa.int64(), "epoch": pa.int64(), "group_seq": pa.int64(),
    "attempt": pa.int32(), "seq": pa.int64(), "ordinal": pa.int64(),
    "dispatched_at": pa.timestamp("us", "UTC"), "ended_at": pa.timestamp("us", "UTC"),
}  # fmt: skip
#: `latency_us`: from the hand-over, by its leader's clock, until the alert, by the stream's. `rule` is that
#: of a violation, the kind of a gap, or null.
SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.string()), pa.field("raised_at", pa.timestamp("us", "UTC")),
        pa.field("kind", pa.string()), pa.field("lane", pa.string()), pa.field("group", pa.string()),
        pa.field("inbound", pa.string()), pa.field("rule", pa.string()), pa.field("text", pa.string()),
        pa.field("latency_us", pa.int64()),
    ]
    + [pa.field(name, _TYPES.get(name, pa.string())) for name in EVIDENCE]
    + [pa.field(f"other_{name}", _TYPES.get(name, pa.string())) for name in EVIDENCE]
)  # fmt: skip


def alerts_table(
    violations: pa.Table, gaps: Iterable[Gap], bad: Iterable[BadFile], raised_at: datetime
) -> pa.Table:
    """All that a batch raises, violations first, in an order that a repetition has as well."""
    rows = [_of_violation(row, raised_at) for row in violations.to_pylist()]
    rows.sort(key=lambda row: row["id"])
    rows += [_plain(GAP, gap.lane, gap.kind.value, gap.text, raised_at, gap_name(gap)) for gap in gaps]
    rows += [
        _plain(FILE, each.lane, None, f"not read: {each.path} {each.problem}", raised_at, (each.path,))
        for each in bad
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def gap_name(gap: Gap) -> tuple[Any, ...]:
    """What makes it the same gap in a later batch."""
    dropped_until = gap.until[1] if gap.kind == "dropped" else None
    return gap.lane, gap.kind.value, gap.writer, gap.first_ordinal, dropped_until


def _of_violation(row: dict[str, Any], raised_at: datetime) -> dict[str, Any]:
    began = row["dispatched_at"]
    latency_us = None if began is None else round((raised_at - began).total_seconds() * 1e6)
    name = f"{VIOLATION}/{row['rule']}/{row['lane']}/{row['incarnation']}/{row['seq']}"
    return row | {
        "id": name, "raised_at": raised_at, "kind": VIOLATION, "latency_us": latency_us,
        "text": about_violation(row),
    }  # fmt: skip


def _plain(
    kind: str, lane: str | None, rule: str | None, text: str, raised_at: datetime, name: tuple[Any, ...]
) -> dict[str, Any]:
    parts = [kind, *("" if part is None else str(part) for part in name)]
    return {
        "id": "/".join(parts), "raised_at": raised_at, "kind": kind, "lane": lane, "rule": rule, "text": text,
    }  # fmt: skip


def as_json(alert: dict[str, Any]) -> str:
    """On one line, without null values."""
    shown = {
        name: value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
        for name, value in alert.items() if value is not None
    }  # fmt: skip
    return json_text.dumps(shown)


def as_text(alert: dict[str, Any]) -> str:
    """For people, on one line."""
    if alert["kind"] == GAP:
        return printable(f"gap: lane {alert['lane']}: {alert['text']}")
    return printable(str(alert["text"]))
