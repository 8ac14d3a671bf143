"""The demo's table: a change is applied only to the row that it was made for, by the newest owner."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio

from dispatcher.demo.table import ApplyOutcome, AsyncTable, Table
from dispatcher.demo.workload import RowChange


@pytest.fixture
def prefix() -> str:
    return f"table-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def table(redis_url: str, prefix: str) -> Iterator[Table]:
    with redis.Redis.from_url(redis_url) as client:
        made = Table(client, prefix)
        yield made
        made.clear()


def test_a_row_is_made_changed_and_deleted(table: Table) -> None:
    assert table.apply(RowChange(b"g", b"\xff\n", b"", b"1"), 5, 0) is ApplyOutcome.APPLIED
    assert table.apply(RowChange(b"g", b"\xff\n", b"1", b"2"), 5, 1) is ApplyOutcome.APPLIED
    assert table.rows() == {b"\xff\n": b"2"}
    assert table.apply(RowChange(b"g", b"\xff\n", b"2", b""), 5, 2) is ApplyOutcome.APPLIED
    assert table.rows() == {}


def test_a_change_of_another_value_is_refused(table: Table) -> None:
    table.apply(RowChange(b"g", b"k", b"", b"1"), 5, 0)
    assert table.apply(RowChange(b"g", b"k", b"0", b"2"), 5, 1) is ApplyOutcome.CONFLICT
    assert table.apply(RowChange(b"g", b"k", b"", b"2"), 5, 2) is ApplyOutcome.CONFLICT
    assert table.rows() == {b"k": b"1"}


def test_a_repeated_change_is_known(table: Table) -> None:
    table.apply(RowChange(b"g", b"k", b"", b"1"), 5, 0)
    table.apply(RowChange(b"g", b"k", b"1", b"2"), 5, 1)
    assert table.apply(RowChange(b"g", b"k", b"", b"1"), 6, 0) is ApplyOutcome.AGAIN
    assert table.rows() == {b"k": b"2"}


def test_an_old_epoch_is_refused_whatever_it_writes(table: Table) -> None:
    table.apply(RowChange(b"g", b"k", b"", b"1"), 6, 0)
    assert table.apply(RowChange(b"g", b"k", b"1", b"2"), 5, 1) is ApplyOutcome.STALE
    assert table.apply(RowChange(b"other", b"l", b"", b"1"), 5, 1) is ApplyOutcome.APPLIED
    assert table.rows() == {b"k": b"1", b"l": b"1"}


async def test_the_asynchronous_table_is_the_same_one(table: Table, prefix: str, redis_url: str) -> None:
    client = redis.asyncio.Redis.from_url(redis_url)
    asynchronous = AsyncTable(client, prefix)
    assert await asynchronous.apply(RowChange(b"g", b"k", b"", b"1"), 5, 0) is ApplyOutcome.APPLIED
    assert await asynchronous.apply(RowChange(b"g", b"k", b"", b"1"), 5, 0) is ApplyOutcome.AGAIN
    await client.aclose()
    assert table.rows() == {b"k": b"1"}
