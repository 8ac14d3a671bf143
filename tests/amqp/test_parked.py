"""What goes through a parking queue comes out as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.amqp.events import Fetched
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.parked import ParkedContent, park_frames, read_parked
from dispatcher.amqp.relay import Content
from dispatcher.errors import ProtocolViolation
from dispatcher.wire.origin import origin_fingerprint
from tests.amqp.samples import EVERY_TYPE, FRAME_MAX, properties, read_publish, table_of, text
from tests.amqp.test_relay import content, number, property_lists

GROUPING = Grouping(("x-group-id",), "x-group-seq")
ORIGIN = "in bound 1790000000.42"


def parked(original: Content, **given: Any) -> Fetched:
    """Published to a parking queue and fetched from it."""
    arguments = {
        "origin": ORIGIN, "term": 7, "attempt": 2, "deadline_at_ms": None, "waits_since_ms": 5, **given,
    }  # fmt: skip
    frames = park_frames(
        original, channel=2, exchange="dispatch.o", routing_key="dispatch.o.park.1", frame_max=FRAME_MAX,
        **arguments,
    )  # fmt: skip
    publish, raw, body = read_publish(frames)
    assert (publish.exchange, publish.routing_key) == ("dispatch.o", "dispatch.o.park.1")
    assert publish.mandatory
    return Fetched(1, False, b"dispatch.o", b"dispatch.o.park.1", 0, raw, body)


def same(read: ParkedContent, original: Content) -> None:
    found = read.content
    for name in (
        "properties", "table_at", "table_end", "body", "exchange", "routing_key", "group", "closing",
        "refusal",
    ):  # fmt: skip
        assert getattr(found, name) == getattr(original, name), name


@settings(deadline=None)
@given(property_lists, st.binary(max_size=300), st.none() | st.integers(0, 2**53))
def test_it_comes_out_as_it_was(raw: bytes, body: bytes, deadline_at_ms: int | None) -> None:
    original = content(raw, body)
    read = read_parked(
        parked(original, deadline_at_ms=deadline_at_ms, waits_since_ms=9), GROUPING, b"dispatch.o"
    )
    same(read, original)
    assert (read.term, read.attempt, read.deadline_at_ms) == (7, 2, deadline_at_ms)
    assert read.waits_since_ms == 9
    assert (read.queue, read.arrival) == ("in bound", (1_790_000_000, 42))
    assert read.content.fingerprint == origin_fingerprint(ORIGIN)
    again = read_parked(parked(read.content, term=8, attempt=3), GROUPING, b"dispatch.o")
    same(again, original)
    assert again.content.origin == ORIGIN


@pytest.mark.parametrize("mode", [None, 1, 2])
def test_a_parked_copy_is_persistent_and_does_not_expire(mode: int | None) -> None:
    original = content(
        properties(EVERY_TYPE["double"], delivery_mode=mode, expiration=b"100", user_id=b"app")
    )
    fetched = parked(original, deadline_at_ms=5)
    before, _, after = table_of(fetched.properties)
    assert before[0] & 0x10
    assert after[0] == 2
    assert not before[0] & 0x01
    assert not before[1] & 0x10, "RabbitMQ would refuse another user's id"


def test_a_closing_message_of_a_group_still_is() -> None:
    original = content(properties(text("x-group-id", "g"), number("x-group-seq", -1)))
    read = read_parked(parked(original), GROUPING, b"dispatch.o")
    assert (read.content.group, read.content.closing) == (b"g", True)


@pytest.mark.parametrize(
    "raw",
    [
        properties(),
        properties(text("x-dispatch-origin", "nowhere"), delivery_mode=2),
        properties(text("x-dispatch-origin", ORIGIN), delivery_mode=2),
        properties(text("x-dispatch-origin", b"\xff 1.2"), delivery_mode=2),
        b"\x20\x00\x00\x00\x00\x09\x01",
    ],
)
def test_what_no_dispatcher_has_parked_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        read_parked(Fetched(1, False, b"dispatch.o", b"q", 0, raw, b""), GROUPING, b"dispatch.o")


def test_only_the_lanes_exchange_leads_into_a_parking_queue() -> None:
    """A producer reaches it by its name through the default exchange."""
    forged = parked(content(properties(text("x-group-id", "g"))))._replace(exchange=b"")
    with pytest.raises(ProtocolViolation, match="no dispatcher has put it"):
        read_parked(forged, GROUPING, b"dispatch.o")


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        read_parked(Fetched(1, False, b"dispatch.o", b"q", 0, raw, b""), GROUPING, b"dispatch.o")
    except ProtocolViolation:
        return
