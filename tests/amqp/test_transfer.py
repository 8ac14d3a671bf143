"""What operators send elsewhere is the original, and says where it was."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.amqp.properties import user_property
from dispatcher.amqp.transfer import origin_field, transfer_frames
from tests.amqp.samples import EVERY_TYPE, FRAME_MAX, properties, read_publish, table_of, text
from tests.amqp.test_relay import content

ORIGIN = "in 1790000000.42"
FULL: dict[str, Any] = {
    "content_type": b"text/plain", "content_encoding": b"gzip", "correlation_id": b"\xff",
    "reply_to": b"rep", "message_id": b"mid", "timestamp": 5, "type_": b"typ", "app_id": b"app",
}  # fmt: skip


def sent(raw: bytes, group: bytes | None = b"g", frame_max: int = FRAME_MAX, user: bytes = b"") -> bytes:
    original = content(raw)
    frames = transfer_frames(
        original, channel=2, exchange="shop", routing_key="k", group=group, origin=ORIGIN, user=user,
        frame_max=frame_max,
    )  # fmt: skip
    publish, properties_, body = read_publish(frames)
    assert (publish.exchange, publish.routing_key, publish.mandatory, body) == ("shop", "k", True, b"body")
    return properties_


def added(raw: bytes, group: bytes | None = b"g") -> bytes:
    original = content(raw)
    fields = [origin_field(ORIGIN), *([text("x-dispatch-group", group)] if group is not None else [])]
    fields += [
        text("x-dispatch-exchange", original.exchange),
        text("x-dispatch-routing-key", original.routing_key),
    ]
    return b"".join(fields)


@pytest.mark.parametrize("expiration", [None, b"0", b"60000"])
@pytest.mark.parametrize("mode", [None, 1, 2])
@pytest.mark.parametrize("given", [FULL, {}, {"priority": 5}, {"reply_to": b"r"}])
def test_every_property_stays(given: dict[str, Any], mode: int | None, expiration: bytes | None) -> None:
    raw = properties(*EVERY_TYPE.values(), **given, delivery_mode=mode, expiration=expiration)
    before, table, after = table_of(sent(raw))
    expected = table_of(raw)
    assert (before[:-4], table, after) == (expected[0][:-4], expected[1] + added(raw), expected[2])


def test_a_bare_message_gets_a_table() -> None:
    before, table, after = table_of(sent(b"\x00\x00", None))
    assert (before[:2], table, after) == (b"\x20\x00", added(b"\x00\x00", None), b"")


def test_the_user_becomes_a_header() -> None:
    raw = properties(user_id=b"app1", expiration=b"7")
    _, table, after = table_of(sent(raw))
    assert (table, after) == (text("x-dispatch-user-id", "app1") + added(raw), b"\x017")


@pytest.mark.parametrize(
    "given", [{}, {"message_id": b"m", "type_": b"t"}, {"app_id": b"a", "reply_to": b"r"}]
)
@pytest.mark.parametrize("expiration", [None, b"7"])
def test_it_can_be_signed(given: dict[str, Any], expiration: bytes | None) -> None:
    """With the user of the connection, which RabbitMQ validates."""
    raw = properties(text("h", "1"), **given, expiration=expiration)
    signed = sent(raw, user=b"us")
    assert user_property(signed) == "us"
    before, table, after = table_of(signed)
    expected = table_of(properties(text("h", "1"), **given, expiration=expiration, user_id=b"us"))
    assert (before[:-4], table, after) == (expected[0][:-4], expected[1] + added(raw), expected[2])


def test_headers_that_leave_no_room_for_ours() -> None:
    with pytest.raises(ValueError, match="frame"):
        sent(properties(text("h", b"x" * 3_960)), frame_max=4_096)
