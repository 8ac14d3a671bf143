"""The demo's table: a change is applied only to the row that it was made for, by the newest owner."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio

from dispatcher.demo.table import AsyncTable, Outcome, Table
from dispatcher.demo.workload import Change


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
    assert table.apply(Change(b"g", b"\xff\n", b"", b"1"), 5, 0) is Outcome.APPLIED
    assert table.apply(Change(b"g", b"\xff\n", b"1", b"2"), 5, 1) is Outcome.APPLIED
    assert table.rows() == {b"\xff\n": b"2"}
    assert table.apply(Change(b"g", b"\xff\n", b"2", b""), 5, 2) is Outcome.APPLIED
    assert table.rows() == {}


def test_a_change_of_another_value_is_refused(table: Table) -> None:
    table.apply(Change(b"g", b"k", b"", b"1"), 5, 0)
    assert table.apply(Change(b"g", b"k", b"0", b"2"), 5, 1) is Outcome.CONFLICT
    assert table.apply(Change(b"g", b"k", b"", b"2"), 5, 2) is Outcome.CONFLICT
    assert table.rows() == {b"k": b"1"}


def test_a_repeated_change_is_known(table: Table) -> None:
    table.apply(Change(b"g", b"k", b"", b"1"), 5, 0)
    table.apply(Change(b"g", b"k", b"1", b"2"), 5, 1)
    assert table.apply(Change(b"g", b"k", b"", b"1"), 6, 0) is Outcome.AGAIN
    assert table.rows() == {b"k": b"2"}


def test_an_old_epoch_is_refused_whatever_it_writes(table: Table) -> None:
    table.apply(Change(b"g", b"k", b"", b"1"), 6, 0)
    assert table.apply(Change(b"g", b"k", b"1", b"2"), 5, 1) is Outcome.STALE
    assert table.apply(Change(b"other", b"l", b"", b"1"), 5, 1) is Outcome.APPLIED
    assert table.rows() == {b"k": b"1", b"l": b"1"}


async def test_the_asynchronous_table_is_the_same_one(table: Table, prefix: str, redis_url: str) -> None:
    client = redis.asyncio.Redis.from_url(redis_url)
    asynchronous = AsyncTable(client, prefix)
    assert await asynchronous.apply(Change(b"g", b"k", b"", b"1"), 5, 0) is Outcome.APPLIED
    assert await asynchronous.apply(Change(b"g", b"k", b"", b"1"), 5, 0) is Outcome.AGAIN
    await client.aclose()
    assert table.rows() == {b"k": b"1"}
