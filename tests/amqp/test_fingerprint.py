"""The fingerprint names an original: the same for every delivery of it, another for any other message."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.relay import delivery_count, read_content
from tests.amqp.samples import EVERY_TYPE, field, long, properties, text

COUNT = field("x-delivery-count", "l", (1).to_bytes(8))
ACQUIRED = field("x-acquired-count", "l", (2).to_bytes(8))
ONE, TWO = text("x-group-id", "g"), text("trace", "t")


def fingerprint(
    raw: bytes, body: bytes = b"body", *, exchange: bytes = b"e", key: bytes = b"k", **delivered: Any
) -> bytes:
    arguments = {"channel": 1, "consumer_tag": b"c", "tag": 1, "redelivered": False, **delivered}
    delivery = Delivery(exchange=exchange, routing_key=key, properties=raw, body=body, **arguments)
    return read_content(delivery, Grouping(("x-group-id",), "x-group-seq")).fingerprint


def test_how_it_is_delivered_does_not_matter() -> None:
    raw = properties(ONE, delivery_mode=2)
    assert fingerprint(raw) == fingerprint(raw, channel=9, consumer_tag=b"d", tag=77, redelivered=True)


@pytest.mark.parametrize("added", [[COUNT], [ACQUIRED], [COUNT, ACQUIRED]])
def test_what_a_quorum_queue_adds_does_not_matter(added: list[bytes]) -> None:
    # It sorts the table by name as well, and drops the two lowest flag bits.
    first = properties(TWO, ONE, EVERY_TYPE["deep"], delivery_mode=2, message_id=b"m", low_bits=3)
    fields = sorted([ONE, TWO, EVERY_TYPE["deep"], *added], key=lambda raw: raw[1 : 1 + raw[0]])
    assert fingerprint(properties(*fields, delivery_mode=2, message_id=b"m")) == fingerprint(first)


@pytest.mark.parametrize("added", [[COUNT], [ACQUIRED], [COUNT, ACQUIRED]])
def test_a_table_that_only_the_broker_filled_is_no_table(added: list[bytes]) -> None:
    absent = properties(table=False, delivery_mode=2, content_type=b"text/plain")
    given_ = {"delivery_mode": 2, "content_type": b"text/plain"}
    assert (
        fingerprint(absent) == fingerprint(properties(**given_)) == fingerprint(properties(*added, **given_))
    )


def test_the_order_of_headers_does_not_matter() -> None:
    fields = [ONE, TWO, EVERY_TYPE["array"]]
    assert len({fingerprint(properties(*order)) for order in permutations(fields)}) == 1


def test_a_nested_delivery_count_is_the_producers_own() -> None:
    assert delivery_count(properties(field("a", "F", long(COUNT)))) == 0
    assert delivery_count(properties(ONE, COUNT)) == 1
    nested = field("a", "F", long(COUNT))
    assert fingerprint(properties(nested)) != fingerprint(properties(field("a", "F", long(b""))))
    assert fingerprint(properties(text("a", COUNT))) != fingerprint(properties(text("a", "")))


BASE: dict[str, Any] = {
    "content_type": b"a", "content_encoding": b"b", "delivery_mode": 1, "priority": 1, "correlation_id": b"c",
    "reply_to": b"d", "expiration": b"5", "message_id": b"e", "timestamp": 1, "type_": b"f", "user_id": b"g",
    "app_id": b"h", "cluster_id": b"i",
}  # fmt: skip


def test_every_other_difference_matters() -> None:
    base = properties(ONE, TWO, **BASE)
    others = [properties(ONE, TWO, **{**BASE, name: None}) for name in BASE]
    others += [
        properties(ONE, TWO, **{**BASE, name: 2 if isinstance(BASE[name], int) else b"6"}) for name in BASE
    ]
    others += [
        properties(ONE, **BASE),
        properties(ONE, TWO, TWO, **BASE),
        properties(ONE, text("trace", "u"), **BASE),
    ]
    others += [properties(ONE, TWO, text("x-dispatch-seq", "1"), **BASE), properties(**BASE)]
    found = {fingerprint(raw) for raw in [base, *others]}
    found |= {fingerprint(base, b"bodz"), fingerprint(base, b""), fingerprint(base, b"body" * 5_000)}
    found |= {
        fingerprint(base, exchange=b"f"),
        fingerprint(base, key=b"l"),
        fingerprint(base, exchange=b"ek", key=b""),
    }
    assert len(found) == 1 + len(others) + 6


def test_bytes_do_not_move_between_parts() -> None:
    pairs = [
        fingerprint(b"\x00\x00", b"ab", key=b"k"), fingerprint(b"\x00\x00", b"b", key=b"ka"),
        fingerprint(b"\x00\x00", b"", key=b"kab"), fingerprint(b"\x00\x00", b"kab", key=b""),
        fingerprint(properties(message_id=b"ab")), fingerprint(properties(message_id=b"a"), b"bbody"),
        fingerprint(properties(type_=b"ab")), fingerprint(properties(content_type=b"ab")),
    ]  # fmt: skip
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("size", [8_191, 8_192, 8_193, 1_000_000])
def test_large_bodies(size: int) -> None:
    body = b"x" * size
    raw = properties(ONE)
    assert fingerprint(raw, body) == fingerprint(properties(ONE, COUNT), body)
    assert len({fingerprint(raw, body), fingerprint(raw, body[1:]), fingerprint(raw, b"y" + body[1:])}) == 3


_some = st.lists(st.sampled_from([*EVERY_TYPE.values(), ONE, TWO]), max_size=6)


@given(_some, _some, st.binary(max_size=20), st.binary(max_size=20))
def test_two_messages_are_equal_only_if_they_are(
    fields: list[bytes], others: list[bytes], body: bytes, other: bytes
) -> None:
    same = sorted(fields) == sorted(others) and body == other
    equal = fingerprint(properties(*fields), body) == fingerprint(properties(*others), other)
    assert equal == same
