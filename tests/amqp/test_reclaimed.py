"""Copies for hand-over consumers, and what they are when they come back."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.properties import DELIVERY_MODE, split_table
from dispatcher.amqp.reclaimed import read_reclaimed, stranger
from dispatcher.amqp.relay import Content, copy_frames, read_content
from dispatcher.errors import ProtocolViolation
from dispatcher.wire.protocol import LaneNames
from tests.amqp.samples import properties, text

_NAMES = LaneNames("orders")
_PREFIX = _NAMES.consumer("")
_FRAME_MAX = 131_072


def _content(raw: bytes, body: bytes = b"body") -> Content:
    delivery = Delivery(1, b"", 7, False, b"exchange", b"key", raw, body)
    return read_content(delivery, Grouping(("x-group-id",), "x-group-seq", None))


def _handed_over(content: Content, *, first_header: str | None = None, **changes: Any) -> bytes:
    """The property list of the copy."""
    frames = copy_frames(
        content, channel=1, exchange="dispatch.orders", routing_key=f"{_PREFIX}one", group=content.group,
        seq=41, group_seq=3, epoch=9, attempt=2, deadline_at_ms=1_900_000_000_000, first_header=first_header,
        frame_max=_FRAME_MAX, origin="in 12.7", **changes,
    )  # fmt: skip
    assert frames is not None
    publish = 7 + int.from_bytes(frames[3:7]) + 1
    size = int.from_bytes(frames[publish + 3 : publish + 7])
    return frames[publish + 7 + 12 : publish + 7 + size]


@pytest.mark.parametrize("mode", [None, 1, 2])
def test_a_copy_is_persistent_and_comes_back_as_it_was(mode: int | None) -> None:
    raw = properties(
        text("x-group-id", b"g"), text("x-death", b"of another broker"), delivery_mode=mode, priority=4,
        message_id=b"m1", content_type=b"text/plain",
    )  # fmt: skip
    content = _content(raw)
    copy = _handed_over(content)
    _, _, table_end = split_table(copy)
    assert copy[0] & DELIVERY_MODE
    assert copy[table_end] == 2
    read = read_reclaimed(Delivery(1, b"", 3, True, b"dispatch.orders", b"", copy, b"body"), _NAMES, None)
    assert (read.seq, read.attempt, read.deadline_at_ms, read.reason) == (41, 2, 1_900_000_000_000, "")
    assert read.content.properties == content.properties
    assert (read.content.exchange, read.content.routing_key) == (b"exchange", b"key")
    assert (read.content.fingerprint, read.content.group) == (content.fingerprint, b"g")
    assert read.content.origin == "in 12.7"
    assert _handed_over(read.content) == copy


def test_what_rabbitmq_says_of_a_death_here_is_taken_out() -> None:
    content = _content(properties(text("x-group-id", b"g")))
    ours = [
        text("x-first-death-queue", f"{_PREFIX}one".encode()), text("x-first-death-reason", b"expired"),
        text("x-death", b"a table"), text("x-last-death-reason", b"expired"),
    ]  # fmt: skip
    raw = _with_fields(_handed_over(content), *ours)
    read = read_reclaimed(Delivery(1, b"", 3, False, b"dispatch.orders", b"", raw, b"body"), _NAMES, None)
    assert read.reason == "expired"
    assert read.content.properties == content.properties


def test_the_mark_of_the_first_one_is_taken_out() -> None:
    content = _content(properties(text("x-group-id", b"g")))
    raw = _handed_over(content, first_header="x-first")
    read = read_reclaimed(
        Delivery(1, b"", 3, False, b"dispatch.orders", b"", raw, b"body"), _NAMES, "x-first"
    )
    assert read.content.properties == content.properties


def test_what_no_dispatcher_has_handed_over_is_told() -> None:
    delivery = Delivery(1, b"", 3, False, b"", b"q", properties(text("x-group-id", b"g")), b"foreign")
    with pytest.raises(ProtocolViolation, match="no dispatcher has handed it over"):
        read_reclaimed(delivery, _NAMES, None)
    content = stranger(delivery)
    assert (content.body, content.routing_key) == (b"foreign", b"q")
    assert split_table(content.properties) == ([], 6, 6)


def test_only_the_lanes_exchange_leads_into_a_consumers_queue() -> None:
    """A forged copy with the number of a real one would take its place."""
    raw = _handed_over(_content(properties(text("x-group-id", b"g"))))
    with pytest.raises(ProtocolViolation, match="no dispatcher has handed it over"):
        read_reclaimed(Delivery(1, b"", 3, True, b"", b"q", raw, b"body"), _NAMES, None)


def _with_fields(raw: bytes, *fields: bytes) -> bytes:
    _, start, end = split_table(raw)
    table = raw[start:end] + b"".join(fields)
    return raw[: start - 4] + len(table).to_bytes(4) + table + raw[end:]
