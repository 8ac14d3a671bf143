"""An arrived message, as a lane's history keeps it and as it is replayed.

A stream keeps its messages in the form of AMQP 1.0: headers would not come back as they were, and some types
of them make RabbitMQ close the connection. So all that is kept lies in the body: a kind byte, then for a
message a header table of ours, the property list that is relayed (each after a u32 of its bytes) and the
message's own body; for a reader's mark its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, error
from typing import Final

from dispatcher.amqp import wire
from dispatcher.amqp.grouping import header_key
from dispatcher.amqp.properties import (
    DELIVERY_MODE,
    HEADERS,
    field,
    number_field,
    number_of,
    split_table,
    string_field,
)
from dispatcher.amqp.relay import Content
from dispatcher.amqp.transfer import origin_field, transfer_frames
from dispatcher.errors import ProtocolViolation
from dispatcher.wire.origin import read_origin
from dispatcher.wire.protocol import (
    HEADER_EXCHANGE,
    HEADER_GROUP,
    HEADER_ID,
    HEADER_ORIGIN,
    HEADER_REPLAY,
    HEADER_ROUTING_KEY,
)

_MARK, _MESSAGE = b"\x00", b"\x01"
_KEPT_AT: Final = "x-dispatch-kept-at"  # milliseconds since 1970
_EXPIRATION: Final = "x-dispatch-expiration"
_REDELIVERED: Final = "x-dispatch-redelivered"
#: RabbitMQ would obey these a second time.
_OBEYED: Final = (header_key("CC"), header_key("BCC"))
_PERSISTENT: Final = bytes((DELIVERY_MODE, 0, 2))
_read_u32: Final = Struct(">I").unpack_from


def kept_frames(
    content: Content,
    *,
    channel: int,
    exchange: str,
    routing_key: str,
    group: bytes | None,
    origin: str,
    kept_at_ms: int,
    redelivered: bool,
    frame_max: int,
) -> bytes:
    """The mandatory publish of an original to the history."""
    fields = [
        origin_field(origin), number_field(_KEPT_AT, kept_at_ms),
        string_field(HEADER_ID.encode(), content.fingerprint),
        string_field(HEADER_EXCHANGE.encode(), content.exchange),
        string_field(HEADER_ROUTING_KEY.encode(), content.routing_key),
    ]  # fmt: skip
    if group is not None:
        fields.append(string_field(HEADER_GROUP.encode(), group))
    if content.expiration_ms is not None:
        fields.append(number_field(_EXPIRATION, content.expiration_ms))
    if redelivered:
        fields.append(field(_REDELIVERED.encode(), b"t", b"\x01"))
    table, properties = b"".join(fields), content.properties
    parts = (_MESSAGE, wire.pack_u32(len(table)), table, wire.pack_u32(len(properties)), properties)
    return _frames(b"".join((*parts, content.body)), channel, exchange, routing_key, frame_max)


def mark_frames(mark: str, *, channel: int, exchange: str, queue: str, frame_max: int) -> bytes:
    """The mandatory publish of a reader's mark to the history."""
    return _frames(_MARK + mark.encode(), channel, exchange, queue, frame_max)


def _frames(body: bytes, channel: int, exchange: str, key: str, frame_max: int) -> bytes:
    return wire.publish_frame(channel, exchange, key) + wire.content_frames(
        channel, _PERSISTENT, body, frame_max
    )


@dataclass(frozen=True, slots=True)
class KeptMessage:
    """An original as the history has it, but for the headers that RabbitMQ would obey a second time."""

    content: Content
    origin: str
    queue: str  # the inbound queue that it came through
    group: bytes | None
    kept_at_ms: int
    redelivered: bool  # RabbitMQ had delivered it before: then it may be in the history twice


def read_kept(body: bytes) -> KeptMessage | str:
    """What the history had; or the text of a reader's mark. Raises ProtocolViolation for what no dispatcher
    has put there."""
    try:
        if body[:1] == _MARK:
            return body[1:].decode()
        if body[:1] != _MESSAGE:
            raise ValueError
        table, at = _block(body, 1)
        properties, at = _block(body, at)
        fields = split_table(bytes((HEADERS, 0)) + wire.pack_u32(len(table)) + table)[0]
        values = {one[1 : 1 + one[0]].decode(): one[1 + one[0] :] for one in fields}
        origin, group = values[HEADER_ORIGIN][5:].decode(), values.get(HEADER_GROUP)
        own, table_at, table_end = split_table(properties)
        table = b"".join(one for one in own if not one.startswith(_OBEYED))
        head, tail = properties[: table_at - 4], properties[table_end:]
        content = Content(
            None, False, None, values[HEADER_ID][5:], values[HEADER_EXCHANGE][5:],
            values[HEADER_ROUTING_KEY][5:], head + wire.pack_u32(len(table)) + table + tail, table_at,
            table_at + len(table), body[at:],
        )  # fmt: skip
        if _EXPIRATION in values:
            content.expiration_ms = number_of(values[_EXPIRATION])
        return KeptMessage(
            content, origin, read_origin(origin)[0], None if group is None else group[5:],
            number_of(values[_KEPT_AT]), _REDELIVERED in values,
        )  # fmt: skip
    except (KeyError, ValueError, error, ProtocolViolation):
        raise ProtocolViolation("no dispatcher has put it into this history") from None


def _block(body: bytes, at: int) -> tuple[bytes, int]:
    """The bytes whose number stands at `at`, and where they end. Raises ValueError or struct.error."""
    end = at + 4 + _read_u32(body, at)[0]
    if end > len(body):
        raise ValueError
    return body[at + 4 : end], end


def replay_frames(message: KeptMessage, *, channel: int, exchange: str, queue: str, frame_max: int) -> bytes:
    """The mandatory publish of a kept message to a queue, which is bound to the exchange by its name, marked
    as a replay. Its expiration begins anew.

    Raises ValueError when it fits in no frame.
    """
    return transfer_frames(
        message.content, channel=channel, exchange=exchange, routing_key=queue, group=message.group,
        origin=message.origin, mark=number_field(HEADER_REPLAY, message.kept_at_ms), frame_max=frame_max,
    )  # fmt: skip
