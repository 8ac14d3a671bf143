"""Which group a message has, by every header type, and when it closes it."""

from __future__ import annotations

import struct

import pytest

from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.properties import split_table
from dispatcher.errors import ConfigurationError
from tests.amqp.samples import EVERY_TYPE, field, long, properties, text
from tests.spec.lane_bench import clause

NAME = "x-group-id"
SEQ = "x-group-seq"
DEFAULT = Grouping((NAME,), SEQ)


def find(
    raw: bytes, grouping: Grouping = DEFAULT, routing_key: bytes = b"key"
) -> tuple[bytes | None, str | None]:
    fields, _, end = split_table(raw)
    return grouping.find(fields, raw, end, routing_key)


def closes(raw: bytes, grouping: Grouping = DEFAULT) -> bool:
    return grouping.closes(split_table(raw)[0])


@pytest.mark.parametrize(
    "group", [b"g", b"a/b.c#*% d", "größe".encode(), b"\xff\xfe\x00", b"x" * 1_024, b"x" * 100_000, b"\x00"]
)
@pytest.mark.parametrize("kind", ["S", "x"])
def test_strings_and_byte_arrays_are_groups_as_they_are(group: bytes, kind: str) -> None:
    clause("O-1", "Strings and byte arrays count as they are, integers in decimal")
    assert find(properties(field(NAME, kind, long(group)))) == (group, None)


@pytest.mark.parametrize(
    ("kind", "layout", "value"),
    [
        ("b", "b", -128), ("B", "B", 255), ("s", "h", -32_768), ("u", "H", 65_535), ("I", "i", -(2**31)),
        ("i", "I", 2**32 - 1), ("l", "q", -(2**63)), ("L", "q", 2**63 - 1), ("l", "q", 0),
    ],
)  # fmt: skip
def test_integers_are_groups_in_decimal(kind: str, layout: str, value: int) -> None:
    raw = properties(field(NAME, kind, struct.pack(">" + layout, value)))
    assert find(raw) == (str(value).encode(), None)
    assert find(raw) == find(properties(text(NAME, str(value))))


@pytest.mark.parametrize("empty", [text(NAME, b""), field(NAME, "x", long(b"")), field(NAME, "V", b"")])
def test_empty_and_void_are_no_group(empty: bytes) -> None:
    assert find(properties(empty)) == (None, None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bool", "a boolean"), ("float", "a float"), ("double", "a double"), ("decimal", "a decimal"),
        ("timestamp", "a timestamp"), ("table", "a table"), ("array", "an array"),
    ],
)  # fmt: skip
def test_other_types_are_refused_by_name(name: str, words: str) -> None:
    value = EVERY_TYPE[name][1 + len(name) :]
    raw = properties(bytes((len(NAME),)) + NAME.encode() + value)
    assert find(raw) == (None, f"its group header x-group-id is {words}, not a string or integer")


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_the_header_may_stand_anywhere(name: str) -> None:
    assert find(properties(EVERY_TYPE[name], text(NAME, "g"))) == (b"g", None)
    assert find(properties(text(NAME, "g"), EVERY_TYPE[name])) == (b"g", None)


def test_no_header_and_no_table() -> None:
    assert find(properties(text("x-group-i", "g"), text("x-group-id2", "g"), text("X-Group-Id", "g"))) == (
        None,
        None,
    )
    assert find(b"\x00\x00") == (None, None)


def test_a_nested_header_or_one_in_a_value_is_not_meant() -> None:
    inner = text(NAME, "inner")
    assert find(properties(field("a", "F", long(inner)), text("b", inner))) == (None, None)
    assert find(properties(text("b", inner), text(NAME, "outer"))) == (b"outer", None)


def test_the_first_of_two_headers_with_one_name_counts() -> None:
    assert find(properties(text(NAME, "1"), text(NAME, "2"))) == (b"1", None)
    assert find(properties(text(NAME, ""), text(NAME, "2"))) == (None, None)


def test_the_first_present_entry_of_the_list_wins_wherever_it_stands() -> None:
    grouping = Grouping((NAME, "JMSXGroupID", "_AMQ_GROUP_ID"), None)
    amq, jms, own = text("_AMQ_GROUP_ID", "amq"), text("JMSXGroupID", "jms"), text(NAME, "own")
    assert find(properties(amq, jms, own), grouping) == (b"own", None)
    assert find(properties(amq, jms), grouping) == (b"jms", None)
    assert find(properties(amq), grouping) == (b"amq", None)
    assert find(properties(text(NAME, ""), field("JMSXGroupID", "V", b""), amq), grouping) == (b"amq", None)
    refused = find(properties(field(NAME, "t", b"\x01"), amq), grouping)
    assert refused == (None, "its group header x-group-id is a boolean, not a string or integer")


def test_properties_and_routing_key() -> None:
    grouping = Grouping(("property:correlation_id", NAME, "property:content_type", "routing_key"), None)
    assert find(properties(text(NAME, "h"), correlation_id=b"c"), grouping) == (b"c", None)
    assert find(properties(text(NAME, "h"), correlation_id=b""), grouping) == (b"h", None)
    assert find(properties(content_type=b"\xff"), grouping) == (b"\xff", None)
    assert find(properties(), grouping, b"orders.eu") == (b"orders.eu", None)
    assert find(properties(), grouping, b"") == (None, None)


def test_headers_may_be_called_like_properties() -> None:
    assert find(properties(text("correlation_id", "h")), Grouping(("correlation_id",), None)) == (b"h", None)


def test_a_header_name_must_fit_amqp() -> None:
    Grouping(("x" * 255,), "y" * 255)
    for group_header, sequence_header in ((("x" * 256,), None), (("x",), "ö" * 128)):
        with pytest.raises(ConfigurationError, match="at most 255 bytes"):
            Grouping(group_header, sequence_header)


@pytest.mark.parametrize(
    "negative",
    [
        field(SEQ, "b", b"\xff"), field(SEQ, "s", b"\xff\xff"), field(SEQ, "I", b"\xff" * 4),
        field(SEQ, "l", b"\x80" + bytes(7)), field(SEQ, "L", b"\xff" * 8),
        field(SEQ, "f", struct.pack(">f", -1.0)), field(SEQ, "d", struct.pack(">d", -1.0)),
        text(SEQ, "-1"), text(SEQ, " -12 "), text(SEQ, "-007"),
        field(SEQ, "x", long(b"-1")),
    ],
)  # fmt: skip
def test_a_negative_sequence_closes_the_group(negative: bytes) -> None:
    assert closes(properties(text(NAME, "g"), negative))
    assert not closes(properties(text(NAME, "g"), negative), Grouping((NAME,), None))
    assert not closes(properties(field("a", "F", long(negative))))


@pytest.mark.parametrize(
    "other",
    [
        field(SEQ, "b", b"\x01"), field(SEQ, "B", b"\xff"), field(SEQ, "u", b"\xff\xff"),
        field(SEQ, "i", b"\xff" * 4), field(SEQ, "l", bytes(8)), field(SEQ, "d", struct.pack(">d", 0.5)),
        text(SEQ, "1"), text(SEQ, "-0"), text(SEQ, "-"), text(SEQ, "-1x"), text(SEQ, ""), text(SEQ, "last"),
        field(SEQ, "V", b""), field(SEQ, "t", b"\x01"), field(SEQ, "T", b"\xff" * 8),
        field(SEQ, "D", b"\x00\xff\xff\xff\xff"), field(SEQ, "F", long(b"")), field(SEQ, "A", long(b"")),
    ],
)  # fmt: skip
def test_any_other_sequence_means_nothing(other: bytes) -> None:
    assert not closes(properties(other, text(NAME, "g")))


def test_jms_names() -> None:
    grouping = Grouping(("JMSXGroupID",), "JMSXGroupSeq")
    raw = properties(text("JMSXGroupID", "g"), field("JMSXGroupSeq", "I", b"\xff" * 4))
    assert (find(raw, grouping), closes(raw, grouping)) == ((b"g", None), True)
