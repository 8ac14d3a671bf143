"""What goes to the dead queue: the original, persistent, and why it is there."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.relay import REASON_BYTES_MAX, dead_frames, read_content
from tests.amqp.samples import EVERY_TYPE, field, long, properties, read_publish, table_of, text

FRAME_MAX = 131_072
ORIGIN = "inbound.high 1790000000.42"


def dead(
    raw: bytes, body: bytes = b"body", *, frame_max: int = FRAME_MAX, key: bytes = b"k", **given: Any
) -> tuple[bytes, bytes]:
    delivery = Delivery(1, b"in", 5, False, b"events", key, raw, body)
    content = read_content(delivery, Grouping(("x-group-id",), "x-group-seq"))
    arguments: dict[str, Any] = {
        "reason": "failed", "attempt": 3, "calls": 2, "group": content.group, "origin": ORIGIN, **given,
    }  # fmt: skip
    frames = dead_frames(
        content,
        channel=2,
        exchange="dispatch.o",
        routing_key="dispatch.o.dead",
        frame_max=frame_max,
        **arguments,
    )
    publish, properties_, copied = read_publish(frames)
    assert (publish.exchange, publish.routing_key, publish.mandatory) == (
        "dispatch.o",
        "dispatch.o.dead",
        True,
    )
    assert len(properties_) <= frame_max - 20
    return properties_, copied


def added(reason: str = "failed", group: bytes | None = b"g", key: bytes = b"k") -> bytes:
    fields = [text("x-dispatch-reason", reason), field("x-dispatch-attempt", "l", (3).to_bytes(8))]
    fields.append(field("x-dispatch-calls", "l", (2).to_bytes(8)))
    if group is not None:
        fields.append(text("x-dispatch-group", group))
    fields += [text("x-dispatch-origin", ORIGIN), text("x-dispatch-exchange", "events")]
    return b"".join([*fields, text("x-dispatch-routing-key", key)])


FULL: dict[str, Any] = {
    "content_type": b"text/plain", "content_encoding": b"gzip", "priority": 5, "correlation_id": b"\xff",
    "reply_to": b"rep", "message_id": b"mid", "timestamp": 5, "type_": b"typ", "app_id": b"app",
}  # fmt: skip


@pytest.mark.parametrize("mode", [None, 1, 2])
def test_it_is_the_original_made_persistent(mode: int | None) -> None:
    original = properties(text("x-group-id", "g"), *EVERY_TYPE.values(), **FULL, delivery_mode=mode)
    raw, body = dead(original)
    before, fields, after = table_of(raw)
    persistent = properties(text("x-group-id", "g"), *EVERY_TYPE.values(), **FULL, delivery_mode=2)
    expected_before, expected_fields, expected_after = table_of(persistent)
    assert fields == expected_fields + added()
    assert (before[:-4], after, body) == (expected_before[:-4], expected_after, b"body")


def test_a_bare_message() -> None:
    raw, body = dead(b"\x00\x00", b"")
    before, fields, after = table_of(raw)
    assert (before[:2], fields, after, body) == (b"\x30\x00", added(group=None), b"\x02", b"")


def test_expiration_goes_and_the_user_id_moves() -> None:
    raw, _ = dead(properties(**FULL, expiration=b"5", user_id=b"app1"))
    before, fields, after = table_of(raw)
    expected_before, _, expected_after = table_of(properties(**FULL, delivery_mode=2))
    assert fields == text("x-dispatch-user-id", "app1") + added(group=None)
    assert (before[:-4], after) == (expected_before[:-4], expected_after)


def test_a_malformed_message_keeps_its_properties_in_one_header() -> None:
    raw, body = dead(b"\x20\x00\x00\x00\x00\x09\x01a", b"x")
    assert table_of(raw)[1] == (
        field("x-dispatch-properties", "x", long(b"\x20\x00\x00\x00\x00\x09\x01a")) + added(group=None)
    )
    assert body == b"x"


def test_names_and_groups_are_raw() -> None:
    raw, _ = dead(properties(text("x-group-id", b"\xff")), key=b"\xfe")
    assert table_of(raw)[1].endswith(added(group=b"\xff", key=b"\xfe"))


def test_large_bodies() -> None:
    assert dead(b"\x00\x00", b"x" * 300_000)[1] == b"x" * 300_000


def test_a_long_reason_is_cut() -> None:
    raw, _ = dead(b"\x00\x00", reason="ö" * 100_000)
    assert len(raw) < REASON_BYTES_MAX + 300


def test_what_does_not_fit_beside_the_original_is_left_out() -> None:
    table = text("x-group-id", "g" * 2_000) + text("pad", "p" * 1_000)
    original = properties(table, delivery_mode=2)
    assert table_of(dead(original, frame_max=8_192)[0])[1].startswith(table + added(group=b"g" * 2_000))
    assert table_of(dead(original, frame_max=4_096)[0])[1] == table + text("x-dispatch-reason", "failed")


def test_headers_that_leave_no_room_for_the_reason_are_left_out() -> None:
    table = text("x-group-id", "g") + text("pad", "p" * 4_050)
    raw, body = dead(properties(table, **FULL), frame_max=4_096)
    reason = f"its {len(table)} bytes of headers don't fit in a frame and were left out; failed"
    before, fields, after = table_of(raw)
    expected_before, _, expected_after = table_of(properties(**FULL, delivery_mode=2))
    assert fields == text("x-dispatch-reason", reason)
    assert (before[:-4], after, body) == (expected_before[:-4], expected_after, b"body")


def test_the_smallest_frame_is_enough_for_the_largest_properties() -> None:
    longest = {name: b"x" * 255 for name, value in FULL.items() if isinstance(value, bytes)}
    dead(properties(text("pad", "p" * 4_000), **longest), frame_max=4_096, reason="r" * 5_000)
