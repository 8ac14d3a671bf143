"""The audit's violations against what the producers numbered."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from dispatcher.judge.record import HandlingRecord, MessageKey
from tests.chaos.ledger_check import denied

SECOND = "cd" * 16  # names of incarnations; records have their beginning
FIRST = "ab" * 16


def _handled(incarnation: str, seq: int, number: int, producer: str) -> HandlingRecord:
    message = MessageKey("in", "g", 0, number, producer)
    return HandlingRecord(f"c1-1/{incarnation[:8]}", message, seq, 1, 1, 1, 0.0)


@pytest.mark.parametrize(
    ("number", "producer", "is_denied"),
    [(8, "p", True), (6, "p", False), (8, "q", False)],
    ids=["sent later", "sent earlier", "sent by another"],
)
def test_a_step_back_that_was_none(tmp_path: Path, number: int, producer: str, is_denied: bool) -> None:
    (tmp_path / "violations").mkdir()
    duckdb.sql(f"""
        copy (select 'order' as rule, '{SECOND}' as incarnation, 2 as seq,
                     '{FIRST}' as other_incarnation, 1 as other_seq)
        to '{tmp_path}/violations/part.parquet' (format parquet)
    """)
    handlings = [_handled(FIRST, 1, 7, "p"), _handled(SECOND, 2, number, producer)]
    assert bool(denied(tmp_path, handlings)) is is_denied
