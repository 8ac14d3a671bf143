"""Field tables are read and written without loss, whatever strangers put into them."""

from __future__ import annotations

import contextlib
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.client.tables import DEPTH_MAX, read_table, write_table


def entry(name: bytes, kind: bytes, raw: bytes) -> bytes:
    return bytes([len(name)]) + name + kind + raw


def counted(raw: bytes) -> bytes:
    return len(raw).to_bytes(4) + raw


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (b"t", b"\1", True),
        (b"b", b"\xff", -1),
        (b"B", b"\xff", 255),
        (b"s", b"\xff\xfe", -2),
        (b"U", b"\xff\xfe", -2),
        (b"u", b"\xff\xfe", 65534),
        (b"I", b"\xff\xff\xff\xff", -1),
        (b"i", b"\xff\xff\xff\xff", 2**32 - 1),
        (b"l", (-(2**63)).to_bytes(8, signed=True), -(2**63)),
        (b"L", (2**63 - 1).to_bytes(8), 2**63 - 1),
        (b"f", struct.pack(">f", 0.5), 0.5),
        (b"d", struct.pack(">d", 1.1), 1.1),
        (b"D", b"\2" + (-314).to_bytes(4, signed=True), Decimal("-3.14")),
        (b"S", counted("grün".encode()), "grün"),
        (b"S", counted(b"\xff\0"), b"\xff\0"),
        (b"x", counted(b"text"), b"text"),
        (b"T", (1_700_000_000).to_bytes(8), datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        (b"T", (1_700_000_000_000_000).to_bytes(8), 1_700_000_000_000_000),
        (b"V", b"", None),
        (b"A", counted(b"t\0S" + counted(b"x")), [False, "x"]),
        (b"F", counted(entry(b"a", b"B", b"\7")), {"a": 7}),
    ],
)
def test_every_type_is_read(kind: bytes, raw: bytes, value: Any) -> None:
    assert read_table(entry(b"h", kind, raw) + entry(b"next", b"t", b"\1")) == {"h": value, "next": True}


def test_a_name_that_is_not_utf8_is_bytes() -> None:
    assert read_table(entry(b"\xff", b"t", b"\1")) == {b"\xff": True}


def nested(depth: int) -> bytes:
    raw = entry(b"end", b"t", b"\1")
    for _ in range(depth):
        raw = entry(b"n", b"F", counted(raw))
    return raw


def test_tables_nested_fifty_deep_are_read() -> None:
    value: Any = read_table(nested(50))
    for _ in range(50):
        value = value["n"]
    assert value == {"end": True}


def test_deeper_ones_end_in_bytes_instead_of_a_stack_overflow() -> None:
    value: Any = read_table(nested(5_000))
    for _ in range(DEPTH_MAX):
        value = value["n"]
    assert isinstance(value["n"], bytes)


@pytest.mark.parametrize("inner", [b"\5ab", entry(b"a", b"?", b""), entry(b"a", b"S", b"\0\0\1\0x")])
def test_a_malformed_table_inside_comes_as_its_bytes(inner: bytes) -> None:
    assert read_table(entry(b"h", b"F", counted(inner)) + entry(b"k", b"t", b"\1")) == {"h": inner, "k": True}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_a_value_error(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        read_table(raw)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.datetimes(
        min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1), timezones=st.just(UTC)
    ).map(lambda moment: moment.replace(microsecond=0))
    | st.integers(-(2**31), 2**31 - 1).map(lambda unscaled: Decimal(unscaled).scaleb(-3)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=40), VALUES, max_size=6))
def test_what_is_written_is_read_back_with_its_type(headers: dict[str | bytes, Any]) -> None:
    assert read_table(write_table(headers)[4:]) == headers


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({"h": 2**63}, "header 'h': AMQP has no type for 9223372036854775808"),
        ({"h": object}, "header 'h': AMQP has no type for"),
        ({"h": {"inner": Decimal("1e50")}}, "header 'h': header 'inner': 1E\\+50 does not fit"),
        ({"h": datetime(1960, 1, 1, tzinfo=UTC)}, "header 'h': a timestamp must not be before 1970"),
        ({"n" * 256: 1}, "must be at most 255 bytes"),
    ],
)
def test_what_can_not_be_written_is_named(headers: dict[str | bytes, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        write_table(headers)
