"""What a message costs in its lane's fair shares, read from it."""

from __future__ import annotations

import struct

import pytest

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.pricing import COST_MAX, kind_of, pricing
from dispatcher.amqp.relay import Content, read_content
from dispatcher.settings import Chosen
from tests.amqp.samples import field, long, properties, text

GROUPING = Grouping(("x-group-id",), None)
COST = "x-cost"


def content(raw: bytes, body: bytes = b"body") -> Content:
    return read_content(Delivery(1, b"c", 1, False, b"", b"key", raw, body), GROUPING)


def cost(*fields: bytes) -> int:
    price = pricing(Chosen("header", COST))
    assert price is not None
    return price(content(properties(*fields)))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("l", struct.pack(">q", 7), 7),
        ("b", b"\x09", 9),
        ("I", struct.pack(">i", 300), 300),
        ("d", struct.pack(">d", 2.9), 2),
        ("S", long(b"12"), 12),
        ("x", long(b"13"), 13),
        ("l", struct.pack(">q", COST_MAX + 1), COST_MAX),
        ("S", long(b"9999999999"), COST_MAX),
    ],
)
def test_a_cost_is_a_number_or_a_string_that_says_one(kind: str, value: bytes, expected: int) -> None:
    assert cost(field(COST, kind, value)) == expected


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("l", struct.pack(">q", 0)), ("l", struct.pack(">q", -5)), ("d", struct.pack(">d", float("nan"))),
        ("d", struct.pack(">d", float("inf"))), ("S", long(b"")), ("S", long(b"-3")), ("S", long(b"a lot")),
        ("S", long(b"99999999999")), ("t", b"\x01"), ("T", b"\0\0\0\x001234"), ("V", b""), ("F", long(b"")),
    ],
)  # fmt: skip
def test_anything_else_costs_one(kind: str, value: bytes) -> None:
    assert cost(field(COST, kind, value)) == 1


def test_a_message_that_says_no_cost_costs_one() -> None:
    assert cost() == 1
    assert cost(text("x-cost-centre", b"7"), text("note", b"x-cost")) == 1


def test_the_first_of_two_headers_counts() -> None:
    assert cost(field(COST, "b", b"\x05"), field(COST, "b", b"\x06")) == 5


def test_bytes_are_those_of_headers_and_body() -> None:
    price = pricing(Chosen("bytes"))
    assert price is not None
    small, large = content(properties(), b"x"), content(properties(), b"x" * 1_001)
    assert price(large) - price(small) == 1_000
    assert price(small) >= 1


@pytest.mark.parametrize("name", ["1", "measured"])
def test_nothing_is_read_where_messages_say_nothing(name: str) -> None:
    assert pricing(Chosen(name)) is None


def test_the_kind_is_the_type_property() -> None:
    assert kind_of(content(properties(type_=b"order.placed"))) == b"order.placed"
    assert kind_of(content(properties(text("type", b"not this")))) is None
