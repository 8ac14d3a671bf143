"""The broker's side of the wire for tests, written with pamqp and struct instead of our own codec."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

from pamqp import base, commands, frame
from pamqp.commands import Basic, Channel, Connection

from dispatcher.amqp.connection import Connection as OurConnection
from dispatcher.amqp.handshake import Login
from dispatcher.amqp.properties import split_table

FRAME_MAX = 131_072


def method(channel: int, value: base.Frame) -> bytes:
    return frame.marshal(value, channel)


def raw_frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def content(channel: int, properties: bytes, body: bytes, frame_max: int = FRAME_MAX) -> bytes:
    """Header frame and body frames."""
    step = frame_max - 8
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    header = struct.pack(">HHQ", 60, 0, len(body)) + properties
    return raw_frame(2, channel, header) + b"".join(raw_frame(3, channel, piece) for piece in pieces)


def deliver(
    tag: int, body: bytes = b"body", *, channel: int = 1, properties: bytes = b"\x00\x00",
    consumer_tag: str = "c", redelivered: bool = False, exchange: str = "", routing_key: str = "q",
    frame_max: int = FRAME_MAX,
) -> bytes:  # fmt: skip
    start = Basic.Deliver(consumer_tag, tag, redelivered, exchange, routing_key)
    return method(channel, start) + content(channel, properties, body, frame_max)


def returned(body: bytes = b"body", *, channel: int = 1, routing_key: str = "q") -> bytes:
    start = Basic.Return(312, "NO_ROUTE", "dispatch.lane", routing_key)
    return method(channel, start) + content(channel, b"\x00\x00", body)


def start(mechanisms: str = "PLAIN AMQPLAIN") -> bytes:
    properties = {"product": "RabbitMQ", "version": "3.10.8", "capabilities": {"basic.nack": True}}
    return method(0, Connection.Start(0, 9, properties, mechanisms, "en_US"))


def handshake(*, channel_max: int = 2_047, frame_max: int = FRAME_MAX, heartbeat: int = 60) -> bytes:
    """Everything that a broker says until the vhost is open."""
    tune = Connection.Tune(channel_max, frame_max, heartbeat)
    return start() + method(0, tune) + method(0, Connection.OpenOk())


def channel_open(channel: int = 1) -> bytes:
    return method(channel, Channel.OpenOk())


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in pieces, cut at these places (each modulo its length)."""
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(ends)]


def sent_methods(data: bytes) -> list[tuple[int, str, dict[str, object]]]:
    """(channel, name, arguments) of each frame that we wrote, read by pamqp."""
    found = []
    while data:
        consumed, channel, value = frame.unmarshal(data)
        found.append((channel, value.name, dict(value) if isinstance(value, base.Frame) else {}))
        data = data[consumed:]
    return found


# --- header tables ------------------------------------------------------------------------------------


def long(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def field(name: str | bytes, kind: str, value: bytes) -> bytes:
    raw = name.encode() if isinstance(name, str) else name
    return bytes((len(raw),)) + raw + kind.encode() + value


def text(name: str, value: bytes | str) -> bytes:
    return field(name, "S", long(value.encode() if isinstance(value, str) else value))


def nested(depth: int) -> bytes:
    """A table field that holds a table that holds a table …"""
    inner = b""
    for _ in range(depth):
        inner = field("n", "F", long(inner))
    return inner


#: One field of every type that RabbitMQ knows, with values that re-encoding would change.
EVERY_TYPE = {
    "bool": field("bool", "t", b"\x01"),
    "int8": field("int8", "b", b"\xff"),
    "uint8": field("uint8", "B", b"\xff"),
    "int16": field("int16", "s", b"\x00\x05"),
    "uint16": field("uint16", "u", b"\xff\xfe"),
    "int32": field("int32", "I", b"\x00\x00\x00\x05"),
    "uint32": field("uint32", "i", b"\xff\xff\xff\xfe"),
    "int64": field("int64", "l", b"\x00\x00\x00\x00\x00\x00\x00\x05"),
    "float": field("float", "f", struct.pack(">f", 1.1)),
    "double": field("double", "d", struct.pack(">d", 1.1)),
    "decimal": field("decimal", "D", b"\x02\x7f\xff\xff\xff"),
    "string": text("string", "grün"),
    "not utf-8": text("not utf-8", b"\xff\xfe\x00"),
    "array": field("array", "A", long(b"t\x01" + b"S" + long(b"x") + b"A" + long(b"V"))),
    "timestamp": field("timestamp", "T", struct.pack(">Q", 1_790_000_000)),
    "timestamp ms": field("timestamp ms", "T", struct.pack(">Q", 1_790_000_000_123)),
    "table": field("table", "F", long(text("x-group-id", "inner") + field("v", "V", b""))),
    "void": field("void", "V", b""),
    "bytes": field("bytes", "x", long(b"\x00\xff")),
    "deep": field("deep", "F", long(nested(50))),
    "empty": text("empty", ""),
    "": field("", "t", b"\x00"),
}


def properties(
    *fields: bytes, table: bool = True, content_type: bytes | None = None, delivery_mode: int | None = None,
    expiration: bytes | None = None, user_id: bytes | None = None, correlation_id: bytes | None = None,
    message_id: bytes | None = None, type_: bytes | None = None, app_id: bytes | None = None,
    timestamp: int | None = None, priority: int | None = None, reply_to: bytes | None = None,
    content_encoding: bytes | None = None, cluster_id: bytes | None = None, low_bits: int = 0,
) -> bytes:  # fmt: skip
    """A raw property list; `table` False leaves the header table out."""

    def short(value: bytes | None) -> bytes | None:
        return None if value is None else bytes((len(value),)) + value

    parts = [
        short(content_type), short(content_encoding), long(b"".join(fields)) if table else None,
        None if delivery_mode is None else bytes((delivery_mode,)),
        None if priority is None else bytes((priority,)),
        short(correlation_id), short(reply_to), short(expiration), short(message_id),
        None if timestamp is None else struct.pack(">Q", timestamp),
        short(type_), short(user_id), short(app_id), short(cluster_id),
    ]  # fmt: skip
    flags = sum(1 << (15 - at) for at, part in enumerate(parts) if part is not None) | low_bits
    return struct.pack(">H", flags) + b"".join(part for part in parts if part is not None)


def read_publish(data: bytes) -> tuple[commands.Basic.Publish, bytes, bytes]:
    """The method, raw property list and body of one publish that we wrote, checked frame by frame."""
    consumed, channel, publish = frame.unmarshal(data)
    assert isinstance(publish, commands.Basic.Publish)
    data = data[consumed:]
    kind, header_channel, size = struct.unpack_from(">BHI", data)
    assert (kind, header_channel, data[7 + size]) == (2, channel, 0xCE)
    content_class, weight, body_size = struct.unpack_from(">HHQ", data, 7)
    assert (content_class, weight) == (60, 0)
    raw = data[19 : 7 + size]
    data, body = data[8 + size :], b""
    while data:
        kind, body_channel, size = struct.unpack_from(">BHI", data)
        assert (kind, body_channel, data[7 + size]) == (3, channel, 0xCE)
        body += data[7 : 7 + size]
        data = data[8 + size :]
    assert len(body) == body_size
    return publish, raw, body


def producers_fields(raw: bytes) -> list[bytes]:
    """The fields of the header table without ours, sorted: RabbitMQ 4 delivers a table sorted by name."""
    return sorted(one for one in split_table(raw)[0] if not one[1:].startswith(b"x-dispatch-"))


def table_of(raw: bytes) -> tuple[bytes, bytes, bytes]:
    """What is before the table's fields (length included), the fields, and what follows."""
    at = 2
    for bit in (0x80, 0x40):
        if raw[0] & bit:
            at += 1 + raw[at]
    assert raw[0] & 0x20, "there is no header table"
    (size,) = struct.unpack_from(">I", raw, at)
    return raw[: at + 4], raw[at + 4 : at + 4 + size], raw[at + 4 + size :]


# --- connections --------------------------------------------------------------------------------------


def login(user: str | None = "guest", heartbeat_s: int = 10) -> Login:
    return Login(user=user, password="pässword", vhost="a/b", name="orders", heartbeat_s=heartbeat_s)


def opened(channels: int = 1, channel_max: int = 2_047, heartbeat_s: int = 10) -> OurConnection:
    """A connection that is open at instant 0, with these channels, and nothing left to send or to take."""
    connection = OurConnection(login(heartbeat_s=heartbeat_s), 0)
    connection.receive_data(handshake(channel_max=channel_max), 0)
    for _ in range(channels):
        connection.receive_data(channel_open(connection.open_channel(None)), 0)
    connection.data_to_send(0)
    connection.replies = []
    return connection


# --- a connection under test ---


def feed(connection: OurConnection, *frames: bytes, now_ms: int = 0) -> list[Any]:
    return connection.receive_data(b"".join(frames), now_ms)


def sent(connection: OurConnection) -> list[tuple[int, str, dict[str, object]]]:
    return sent_methods(connection.data_to_send(0))


def replies(connection: OurConnection) -> list[tuple[Any, Any]]:
    taken, connection.replies = connection.replies, []
    return taken
