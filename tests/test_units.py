"""Durations and sizes read back what they write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.settings.units import format_duration, format_size, parse_duration_ms, parse_size_bytes


@given(st.integers(min_value=0, max_value=10**12))
def test_durations_round_trip(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration(duration_ms)) == duration_ms


@given(st.integers(min_value=0, max_value=10**14))
def test_sizes_round_trip(size_bytes: int) -> None:
    assert parse_size_bytes(format_size(size_bytes)) == size_bytes


@pytest.mark.parametrize("text", ["", "5", "5 s", "-5s", "5S", "1.5s", "5s ", "٣s", "5s\n", "9" * 5000 + "s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration such as"):
        parse_duration_ms(text)


@pytest.mark.parametrize("text", ["", "0", "5", "5MB", "5 MiB", "-5MiB", "5mib", "9" * 5000 + "B"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="must be a size such as"):
        parse_size_bytes(text)
