"""Raw property lists: split at the top level, whatever is inside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.amqp.properties import spans_after_table, split_table, string_property, type_property
from dispatcher.errors import ProtocolViolation
from tests.amqp.samples import EVERY_TYPE, field, long, nested, properties, text

FULL = {
    "content_type": b"text/plain", "content_encoding": b"gzip", "delivery_mode": 2, "priority": 5,
    "correlation_id": b"corr", "reply_to": b"rep", "expiration": b"60000", "message_id": b"mid",
    "timestamp": 1_790_000_000, "type_": b"typ", "user_id": b"usr", "app_id": b"app", "cluster_id": b"clu",
}  # fmt: skip


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_every_type_is_skipped_by_its_length(name: str) -> None:
    between = [text("a", "1"), EVERY_TYPE[name], text("z", "2")]
    assert split_table(properties(*between))[0] == between
    assert split_table(properties(EVERY_TYPE[name]))[0] == [EVERY_TYPE[name]]


def test_all_types_at_once_with_all_properties() -> None:
    raw = properties(*EVERY_TYPE.values(), **FULL)
    fields, start, end = split_table(raw)
    assert fields == list(EVERY_TYPE.values())
    assert raw[start:end] == b"".join(fields)
    spans = spans_after_table(raw, end)
    assert list(spans) == [name.rstrip("_") for name in FULL if not name.startswith("content")]


@pytest.mark.parametrize("with_type", [False, True])
@pytest.mark.parametrize("with_encoding", [False, True])
def test_place_of_an_absent_table(with_type: bool, with_encoding: bool) -> None:
    raw = properties(
        table=False, delivery_mode=2, content_type=b"abc" if with_type else None,
        content_encoding=b"gzip" if with_encoding else None,
    )  # fmt: skip
    place = 2 + 4 * with_type + 5 * with_encoding
    assert split_table(raw) == ([], place, place)


def test_no_properties_at_all() -> None:
    assert split_table(b"\x00\x00") == ([], 2, 2)
    assert spans_after_table(b"\x00\x00", 2) == {}


def test_an_empty_table_is_a_table() -> None:
    assert split_table(properties()) == ([], 6, 6)


def test_the_two_lowest_flag_bits_mean_nothing() -> None:
    # RabbitMQ ignores them too; AMQP's "more flags follow" was never used.
    raw = properties(text("a", "1"), delivery_mode=2, low_bits=3)
    fields, _, end = split_table(raw)
    assert fields == [text("a", "1")]
    assert list(spans_after_table(raw, end)) == ["delivery_mode"]


@pytest.mark.parametrize(
    "name", [name.rstrip("_") for name, value in FULL.items() if isinstance(value, bytes)]
)
def test_string_properties(name: str) -> None:
    value = FULL.get(name) or FULL[name + "_"]
    for raw in (properties(text("a", "1"), **FULL), properties(table=False, **FULL)):
        assert string_property(raw, split_table(raw)[2], name) == value
    assert string_property(b"\x00\x00", 2, name) == b""


MALFORMED = {
    "nothing": b"",
    "half the flags": b"\x00",
    "content type cut": b"\x80\x00\x05abc",
    "no table size": b"\x20\x00\x00\x00",
    "table longer than the list": b"\x20\x00" + (100).to_bytes(4) + text("a", "1"),
    "field longer than the table": properties(text("a", "12345")[:-2]),
    "field longer than its table, not than the list": properties(
        text("a", "12345")[:-2], message_id=b"abcdef"
    ),
    "name longer than the table": properties(b"\x20abc"),
    "unknown type": properties(field("a", "U", b"\x00\x00")),
    "array longer than the table": properties(field("a", "A", (50).to_bytes(4))),
    "size of a string cut": properties(field("a", "S", b"\x00\x00")),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_lists_are_refused(name: str) -> None:
    with pytest.raises(ProtocolViolation, match=r"header table is malformed|property list is cut short"):
        split_table(MALFORMED[name])


@pytest.mark.parametrize("raw", [b"\x10\x00", b"\x04\x00\x05abc", b"\x00\x00x", b"\x00\x40\x00\x00"])
def test_lists_that_do_not_match_their_flags_are_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="property list"):
        spans_after_table(raw, 2)


def test_depth_costs_nothing() -> None:
    deep = field("deep", "F", long(nested(5_000)))
    assert split_table(properties(deep, text("a", "1")))[0] == [deep, text("a", "1")]


@given(st.binary(max_size=200))
def test_any_bytes_split_or_are_refused(raw: bytes) -> None:
    try:
        fields, start, end = split_table(raw)
        spans_after_table(raw, end)
    except ProtocolViolation:
        return
    assert raw[start:end] == b"".join(fields)


@given(st.sets(st.sampled_from(sorted(FULL))), st.booleans())
def test_the_type_is_found_behind_whatever_is_before_it(names: set[str], with_headers: bool) -> None:
    fields = [text("a", "1")] if with_headers else []
    raw = properties(*fields, **{name: FULL[name] for name in names})
    _, _, end = split_table(raw)
    expected = b"typ" if "type_" in names else b""
    assert type_property(raw, end) == string_property(raw, end, "type") == expected


def test_a_type_that_is_cut_short_is_refused() -> None:
    raw = properties(message_id=b"mid", type_=b"typ")
    _, _, end = split_table(raw)
    with pytest.raises(ProtocolViolation, match="cut short"):
        type_property(raw[:end], end)
