"""A message's properties are read and written exactly."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic

from dispatcher.client.properties import Properties, read, write

EVERYTHING = Properties(
    content_type="application/json", content_encoding="gzip", delivery_mode=2, priority=9, correlation_id="c",
    reply_to="r", expiration="60000", message_id="m", timestamp=datetime(2024, 1, 1, tzinfo=UTC), type="t",
    user_id="u", app_id="a", cluster_id="k",
)  # fmt: skip


def test_every_property_comes_back() -> None:
    assert read(write(EVERYTHING, {"x": 1})) == (EVERYTHING, {"x": 1})


def test_absent_properties_stay_absent() -> None:
    assert write(Properties(), {}) == b"\0\0"
    assert read(b"\0\0") == (Properties(), {})


def test_another_library_reads_the_same() -> None:
    raw = write(EVERYTHING, {"x": 1})
    theirs = Basic.Properties()
    theirs.unmarshal(int.from_bytes(raw[:2]), raw[2:])
    assert theirs.headers == {"x": 1}
    for name in Properties.__slots__:
        their_name = "message_type" if name == "type" else name
        assert getattr(theirs, their_name) == getattr(EVERYTHING, name)


def test_strings_that_are_not_utf8_are_bytes() -> None:
    raw = (0x8000 >> 5).to_bytes(2) + b"\2\xff\xfe"
    assert read(raw)[0].correlation_id == b"\xff\xfe"
    assert write(Properties(correlation_id=b"\xff\xfe"), {}) == raw


def test_a_timestamp_in_another_unit_is_a_number() -> None:
    raw = (0x8000 >> 9).to_bytes(2) + (1_700_000_000_000_000).to_bytes(8)
    assert read(raw)[0].timestamp == 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        (Properties(message_id="x" * 256), "property message_id: must be at most 255 bytes"),
        (Properties(priority=300), "property priority"),
        (Properties(timestamp=-1), "property timestamp"),
    ],
)
def test_what_can_not_be_written_is_named(properties: Properties, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        write(properties, {})


@given(st.binary(max_size=60))
def test_any_bytes_are_properties_or_a_value_error(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        read(raw)
