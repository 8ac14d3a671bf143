"""AMQP 1.0 sections, as RabbitMQ 3.10's plugin passes them on, name and close groups like headers do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.amqp.amqp1 import carried_fields
from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import Grouping, readable_fields
from dispatcher.amqp.pricing import pricing
from dispatcher.amqp.properties import split_table
from dispatcher.amqp.relay import read_content
from dispatcher.settings import Chosen
from tests.amqp.samples import properties, text
from tests.protocols.amqp1_sender import Described, Unsigned, encode
from tests.spec.lane_bench import clause

GROUPING = Grouping(("x-group-id", "property:group_id"), "property:group_sequence")
HEADERS_ONLY = Grouping(("x-group-id",), "x-group-seq")


def carried(*, group: Any = None, sequence: Any = None, **application: Any) -> bytes:
    """A property list as the plugin makes it; names in `application` have _ for -."""
    said = {name.replace("_", "-"): value for name, value in application.items()}
    return properties(
        text("x-amqp-1.0-app-properties", encode(Described(0x74, said))),
        text("x-amqp-1.0-properties", encode(Described(0x73, ["m1", *(None,) * 9, group, sequence]))),
    )


def find(raw: bytes, grouping: Grouping = GROUPING) -> tuple[bytes | None, str | None]:
    fields, _, end = split_table(raw)
    return grouping.find(readable_fields(fields, raw), raw, end, b"key")


def closes(raw: bytes, grouping: Grouping = GROUPING) -> bool:
    return grouping.closes(readable_fields(split_table(raw)[0], raw))


@pytest.mark.parametrize("group", ["g", "größe/1", "x" * 1_000])
def test_group_id_is_a_group_where_it_is_listed(group: str) -> None:
    assert find(carried(group=group)) == (group.encode(), None)
    assert find(carried(group=group), HEADERS_ONLY) == (None, None)


def test_an_empty_or_missing_group_id_is_no_group() -> None:
    assert find(carried(group="")) == (None, None)
    assert find(carried()) == (None, None)
    empty_list = text("x-amqp-1.0-properties", b"\x00\x53\x73\x45")
    assert find(properties(empty_list)) == (None, None)


@pytest.mark.parametrize(
    ("sequence", "closing"),
    [(None, False), (0, False), (7, False), (2**31 - 1, False), (2**31, True), (2**32 - 1, True)],
)
def test_a_sequence_closes_that_is_negative_in_32_bits(sequence: int | None, closing: bool) -> None:
    said = None if sequence is None else Unsigned(sequence)
    assert closes(carried(group="g", sequence=said)) is closing
    assert not closes(carried(group="g", sequence=said), HEADERS_ONLY)


@pytest.mark.parametrize("short", [b"\x43", b"\x52\x05"])
def test_short_forms_of_a_sequence_are_read(short: bytes) -> None:
    listed = b"\xa1\x01m" + b"\x40" * 9 + b"\xa1\x01g" + short
    section = b"\x00\x53\x73\xc0" + bytes((len(listed) + 1, 12)) + listed
    raw = properties(text("x-amqp-1.0-properties", section))
    assert find(raw) == (b"g", None)
    assert not closes(raw)


@pytest.mark.parametrize(
    ("value", "group"),
    [
        ("p", b"p"),
        (b"\xff\x00", b"\xff\x00"),
        (-5, b"-5"),
        (2**40, b"1099511627776"),
        ("", None),
        (None, None),
    ],
)
def test_application_properties_are_headers(value: Any, group: bytes | None) -> None:
    assert find(carried(x_group_id=value)) == (group, None)


def test_a_header_comes_before_an_application_property_of_its_name() -> None:
    clause("O-1", "If no header has one of the configured names, an application property of AMQP 1.0 counts")
    raw = properties(
        text("x-amqp-1.0-app-properties", encode(Described(0x74, {"x-group-id": "second"}))),
        text("x-group-id", "first"),
    )
    assert find(raw) == (b"first", None)


@pytest.mark.parametrize(
    ("value", "words"), [(True, "a boolean"), (False, "a boolean"), (["a"], "of another type")]
)
def test_application_properties_that_name_no_group_are_refused(value: Any, words: str) -> None:
    assert find(carried(x_group_id=value)) == (
        None,
        f"its group header x-group-id is {words}, not a string or integer",
    )


@pytest.mark.parametrize(("value", "closing"), [(-1, True), ("-1", True), (1, False), (None, False)])
def test_an_application_property_closes(value: Any, closing: bool) -> None:
    assert closes(carried(x_group_id="g", x_group_seq=value), HEADERS_ONLY) is closing


def test_an_application_property_is_a_cost() -> None:
    price = pricing(Chosen("header", "x-cost"))
    assert price is not None
    delivery = Delivery(1, b"c", 1, False, b"", b"key", carried(x_cost=12), b"body")
    assert price(read_content(delivery, HEADERS_ONLY)) == 12


@given(st.binary(max_size=60))
def test_whatever_a_section_holds_is_read_or_ignored(section: bytes) -> None:
    for name in ("x-amqp-1.0-properties", "x-amqp-1.0-app-properties"):
        for head in (b"", b"\x00\x53\x73", b"\x00\x53\x73\xc0", b"\x00\x53\x74\xd1"):
            carried_fields([text(name, head + section)])


def test_a_section_that_is_all_descriptors_is_ignored() -> None:
    assert carried_fields([text("x-amqp-1.0-properties", b"\x00" * 100_000)]) == []
