"""Originals on their way through parking queues: what the broker or the relay would lose travels in headers.

A parked copy is persistent, never expires by the broker's clock, and has no `user_id`, which RabbitMQ would
refuse. Read back it gives the same copies, byte for byte, as the original would have.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dispatcher.amqp import wire
from dispatcher.amqp.events import Fetched
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.properties import DELIVERY_MODE, number_field, number_of, split_table, string_field
from dispatcher.amqp.relay import HEADER_DELIVERY_MODE, Content
from dispatcher.errors import ProtocolViolation
from dispatcher.wire.origin import Arrival, origin_fingerprint, read_origin
from dispatcher.wire.protocol import (
    HEADER_ATTEMPT,
    HEADER_DEADLINE,
    HEADER_EXCHANGE,
    HEADER_ORIGIN,
    HEADER_PREFIX,
    HEADER_ROUTING_KEY,
    HEADER_USER_ID,
)

HEADER_TERM: Final = "x-dispatch-term"
HEADER_SINCE: Final = "x-dispatch-since"
_PERSISTENT: Final = b"\x02"
_ABSENT: Final = -1
_OURS: Final = HEADER_PREFIX.encode()
_STRANGE: Final = "no dispatcher has put it into this parking queue"
_USER_ID: Final = HEADER_USER_ID.encode()


class ParkedContent(NamedTuple):
    """An original as a parking queue had it."""

    content: Content
    queue: str  # the inbound queue that it came through
    arrival: Arrival  # there
    term: int
    attempt: int
    deadline_at_ms: int | None
    waits_since_ms: int | None  # None: parked by a version that did not say


def park_frames(
    content: Content,
    *,
    channel: int,
    exchange: str,
    routing_key: str,
    origin: str,
    term: int,
    attempt: int,
    deadline_at_ms: int | None,
    waits_since_ms: int,
    frame_max: int,
) -> bytes:
    """The mandatory publish of an original to a parking queue. Raises ValueError when it fits in no frame."""
    head = bytearray(content.properties[: content.table_at - 4])
    tail = content.properties[content.table_end :]
    mode = tail[0] if head[0] & DELIVERY_MODE else _ABSENT
    added = b"".join((
        string_field(HEADER_ORIGIN.encode(), origin.encode()),
        string_field(HEADER_EXCHANGE.encode(), content.exchange),
        string_field(HEADER_ROUTING_KEY.encode(), content.routing_key),
        number_field(HEADER_TERM, term), number_field(HEADER_ATTEMPT, attempt),
        number_field(HEADER_DELIVERY_MODE, mode),
        number_field(HEADER_SINCE, waits_since_ms),
        b"" if deadline_at_ms is None else number_field(HEADER_DEADLINE, deadline_at_ms),
    ))  # fmt: skip
    table = content.properties[content.table_at : content.table_end] + added
    head[0] |= DELIVERY_MODE
    properties = bytes(head) + wire.pack_u32(len(table)) + table + _PERSISTENT + tail[mode != _ABSENT :]
    return wire.publish_frame(channel, exchange, routing_key) + wire.content_frames(
        channel, properties, content.body, frame_max
    )


def read_parked(fetched: Fetched, grouping: Grouping, exchange: bytes) -> ParkedContent:
    """The message that was parked. Raises ProtocolViolation for one that no dispatcher has parked: only the
    dispatcher may write to the lane's `exchange`."""
    if fetched.exchange != exchange:
        raise ProtocolViolation(_STRANGE)
    properties = fetched.properties
    fields, table_at, table_end = split_table(properties)
    ours = {}
    kept = []
    for one in fields:
        name, value = one[1 : 1 + one[0]], one[1 + one[0] :]
        if name.startswith(_OURS) and name != _USER_ID:
            ours[name.decode(errors="replace")] = value
        else:
            kept.append(one)
    try:
        origin = ours[HEADER_ORIGIN][5:].decode()
        queue, arrival = read_origin(origin)
        first_exchange, routing_key = ours[HEADER_EXCHANGE][5:], ours[HEADER_ROUTING_KEY][5:]
        term, attempt, mode = (
            number_of(ours[name]) for name in (HEADER_TERM, HEADER_ATTEMPT, HEADER_DELIVERY_MODE)
        )
        deadline_at_ms = number_of(ours[HEADER_DEADLINE]) if HEADER_DEADLINE in ours else None
        waits_since_ms = number_of(ours[HEADER_SINCE]) if HEADER_SINCE in ours else None
    except (KeyError, ValueError):
        raise ProtocolViolation(_STRANGE) from None
    content = original_of(properties, kept, table_at, table_end, mode)
    content.exchange, content.routing_key, content.body = first_exchange, routing_key, fetched.body
    content.origin, content.fingerprint = origin, origin_fingerprint(origin)
    content.group, content.refusal = grouping.find(
        kept, content.properties, content.table_end, routing_key
    )  # fmt: skip
    content.closing = grouping.closes(kept)
    return ParkedContent(content, queue, arrival, term, attempt, deadline_at_ms, waits_since_ms)


def original_of(properties: bytes, kept: list[bytes], table_at: int, table_end: int, mode: int) -> Content:
    """The property list as it was before the message was parked, or handed over."""
    flags, tail = properties[0], properties[table_end:]
    if not flags & DELIVERY_MODE:
        raise ProtocolViolation(_STRANGE)
    tail = tail[1:]
    if mode != _ABSENT:
        tail = bytes((mode & 0xFF,)) + tail
    else:
        flags &= ~DELIVERY_MODE
    table = b"".join(kept)
    head = bytes((flags,)) + properties[1 : table_at - 4] + wire.pack_u32(len(table))
    end = len(head) + len(table)
    return Content(None, False, None, b"", b"", b"", head + table + tail, len(head), end, b"")
