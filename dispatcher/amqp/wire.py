"""Frames that are written once per message, and the numbers that they are made of.

Everything here is plain bytes in, bytes out. Multi-byte numbers are big-endian.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
END: Final = b"\xce"
#: Type, channel and size before the payload, the end mark behind it.
FRAME_OVERHEAD_BYTES: Final = 8
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

# Methods are named by class << 16 | method, as the first four bytes of their payload say it.
CONNECTION_OPEN: Final = 10 << 16 | 40
CONNECTION_CLOSE: Final = 10 << 16 | 50
CONNECTION_CLOSE_OK: Final = 10 << 16 | 51
CONNECTION_BLOCKED: Final = 10 << 16 | 60
CONNECTION_UNBLOCKED: Final = 10 << 16 | 61
CHANNEL_OPEN_OK: Final = 20 << 16 | 11
CHANNEL_CLOSE: Final = 20 << 16 | 40
CHANNEL_CLOSE_OK: Final = 20 << 16 | 41
BASIC_CANCEL: Final = 60 << 16 | 30
BASIC_CANCEL_OK: Final = 60 << 16 | 31
BASIC_PUBLISH: Final = 60 << 16 | 40
BASIC_RETURN: Final = 60 << 16 | 50
BASIC_DELIVER: Final = 60 << 16 | 60
BASIC_GET_OK: Final = 60 << 16 | 71
BASIC_ACK: Final = 60 << 16 | 80
BASIC_NACK: Final = 60 << 16 | 120
#: Class basic, weight 0: the first four bytes of every content header.
BASIC_CONTENT: Final = 60 << 16

#: One frame of each consumer queue and channel; a lane has at most a few thousand of them at a time.
_METHOD_FRAMES_MAX: Final = 16_384

pack_u32: Final = Struct(">I").pack
pack_frame_head: Final = Struct(">BHI").pack
#: Head of a header frame: type, channel, size, class and weight, body size.
pack_header_head: Final = Struct(">BHIIQ").pack
#: End mark of the header frame, then type, channel and size of the body frame behind it.
pack_body_head: Final = Struct(">BBHI").pack
_pack_ack: Final = Struct(">BHIIQBB").pack
_ACK_BYTES: Final = 13
#: Class, weight, body size: what a header frame has before the property flags.
HEADER_HEAD_BYTES: Final = 12


def short_string(text: str) -> bytes:
    """AMQP's short string. Raises ValueError above 255 bytes."""
    raw = text.encode()
    if len(raw) > 255:
        raise ValueError(f"{text[:40]!r}…: an AMQP name has at most 255 bytes, this one has {len(raw)}")
    return bytes((len(raw),)) + raw


def method_frame(channel: int, index: int, arguments: bytes = b"") -> bytes:
    """A method frame from its number and encoded arguments."""
    return pack_frame_head(FRAME_METHOD, channel, 4 + len(arguments)) + pack_u32(index) + arguments + END


@lru_cache(_METHOD_FRAMES_MAX)
def publish_frame(channel: int, exchange: str, routing_key: str, mandatory: bool = True) -> bytes:
    """The basic.publish frame, made once for all messages to a queue."""
    names = short_string(exchange) + short_string(routing_key)
    return method_frame(channel, BASIC_PUBLISH, b"\x00\x00" + names + bytes((mandatory,)))


def ack_frame(channel: int, tag: int, multiple: bool = False) -> bytes:
    """A basic.ack frame."""
    return _pack_ack(FRAME_METHOD, channel, _ACK_BYTES, BASIC_ACK, tag, multiple, FRAME_END)


def body_frames(channel: int, body: bytes, frame_max: int) -> list[bytes]:
    """The body in as many frames as it needs, in pieces; none when it is empty."""
    step = frame_max - FRAME_OVERHEAD_BYTES
    pieces: list[bytes] = []
    for at in range(0, len(body), step):
        piece = body[at : at + step]
        pieces += (pack_frame_head(FRAME_BODY, channel, len(piece)), piece, END)
    return pieces


def content_frames(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """Header and body frames. Raises ValueError when the properties don't fit in one frame."""
    size = HEADER_HEAD_BYTES + len(properties)
    if size + FRAME_OVERHEAD_BYTES > frame_max:
        raise ValueError(f"{len(properties)} bytes of properties don't fit in a frame of {frame_max}")
    header = pack_header_head(FRAME_HEADER, channel, size, BASIC_CONTENT, len(body))
    return b"".join((header, properties, END, *body_frames(channel, body, frame_max)))
