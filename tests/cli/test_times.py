"""A time means the same to every command, whatever the machine's zone is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import typer

from dispatcher.cli.options import parse_instant_us
from dispatcher.cli.replay import parse_since_ms

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()


@pytest.fixture(autouse=True)
def _far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    "text", ["2026-01-31T12:00", "2026-01-31T12:00Z", "2026-01-31T14:00+02:00", "2026-01-31 06:30-05:30"]
)
def test_utc_unless_it_has_an_offset(text: str) -> None:
    assert parse_instant_us(text) == NOON * 1_000_000


def test_replay_reads_it_in_the_same_way() -> None:
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    at = (now - timedelta(minutes=1)).isoformat()
    assert parse_since_ms(at) * 1_000 == parse_instant_us(at)
    with pytest.raises(typer.BadParameter):
        parse_since_ms((now + timedelta(minutes=1)).isoformat())


def test_a_duration_counts_back_from_now() -> None:
    before, found, after = time.time(), parse_instant_us("2h") / 1_000_000 + 7_200, time.time()
    assert before - 0.01 <= found <= after


@pytest.mark.parametrize("text", ["soon", "2", "2026-13-01", "1969-01-01", "9999-01-01", "99999999999999d"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_instant_us(text)
