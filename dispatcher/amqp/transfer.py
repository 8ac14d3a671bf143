"""Originals that operators send elsewhere: as they came, and where they came from."""

from __future__ import annotations

from typing import Final

from dispatcher.amqp import wire
from dispatcher.amqp.properties import EXPIRATION, HEADERS, USER_ID, spans_after_table, string_field
from dispatcher.amqp.relay import Content
from dispatcher.wire.protocol import HEADER_EXCHANGE, HEADER_GROUP, HEADER_ORIGIN, HEADER_ROUTING_KEY

#: The properties between the header table and the expiration.
_BEFORE_EXPIRATION: Final = ("delivery_mode", "priority", "correlation_id", "reply_to")
#: Those before the user id: the original's expiration is taken out.
_BEFORE_USER_ID: Final = (*_BEFORE_EXPIRATION, "message_id", "timestamp", "type")


def transfer_frames(
    content: Content,
    *,
    channel: int,
    exchange: str,
    routing_key: str,
    group: bytes | None,
    origin: str,
    mark: bytes = b"",
    user: bytes = b"",
    frame_max: int,
) -> bytes:
    """The mandatory publish of an original to where it is sent. Raises ValueError when it fits in no frame.

    Unlike a consumer's copy it keeps its `expiration`, which begins anew, and its `delivery_mode`. `mark` is
    one more field of its header table. With a `user`, which must be the connection's, its `user_id` says so.
    """
    added = origin_field(origin) + mark
    if group is not None:
        added += string_field(HEADER_GROUP.encode(), group)
    added += string_field(HEADER_EXCHANGE.encode(), content.exchange)
    added += string_field(HEADER_ROUTING_KEY.encode(), content.routing_key)
    flags = bytearray(content.properties[:2])
    flags[0] |= HEADERS
    table = content.properties[content.table_at : content.table_end] + added
    head, tail = content.properties[2 : content.table_at - 4], content.properties[content.table_end :]
    if user or content.expiration_ms is not None:
        spans = spans_after_table(content.properties, content.table_end)
        ends = {name: end - content.table_end for name, (_, end) in spans.items()}
        if user:  # first: it lies behind the expiration
            tail = _inserted(tail, ends, _BEFORE_USER_ID, user)
            flags[1] |= USER_ID
        if content.expiration_ms is not None:
            tail = _inserted(tail, ends, _BEFORE_EXPIRATION, str(content.expiration_ms).encode())
            flags[0] |= EXPIRATION
    properties = b"".join((flags, head, wire.pack_u32(len(table)), table, tail))
    return wire.publish_frame(channel, exchange, routing_key) + wire.content_frames(
        channel, properties, content.body, frame_max
    )


def _inserted(tail: bytes, ends: dict[str, int], before: tuple[str, ...], text: bytes) -> bytes:
    """The properties behind the header table with one more, behind all of those `before` it."""
    at = max((ends[name] for name in before if name in ends), default=0)
    return tail[:at] + bytes((len(text),)) + text + tail[at:]


def origin_field(origin: str) -> bytes:
    """The header that names one original, and is the same if it is sent twice."""
    return string_field(HEADER_ORIGIN.encode(), origin.encode())
