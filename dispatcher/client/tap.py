"""Takes deliveries out of the bytes that a broker sends, before an AMQP library decodes them.

aio-pika and pika decode every header of every message, and a table that they can't decode ends the
connection: the message would come again and again. They also change what they decode (pika cuts floats to
integers). So the bytes pass through here first. Deliveries, which is where headers of strangers and nearly
all of the work are, leave the stream; the library sees the rest: handshake, heartbeats, confirms, errors.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_FRAME: Final = struct.Struct(">BHI")
_FRAME_OVERHEAD: Final = 8  # the seven bytes above and the end byte
_END: Final = 0xCE
_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_DELIVER: Final = bytes([0, 60, 0, 60])  # class basic, method deliver
_CONNECTION_CLOSE: Final = bytes([0, 10, 0, 50])
#: In a content header: class, weight, body size, then flags and property list.
_BODY_SIZE: Final = struct.Struct(">Q")


class TappedDelivery(NamedTuple):
    """A delivered message; `properties` are flags and property list exactly as they came."""

    consumer_tag: bytes
    properties: bytes
    body: bytes


class _Content:
    """A delivery of which not every frame has come."""

    __slots__ = ("consumer_tag", "parts", "properties", "remaining")

    def __init__(self, consumer_tag: bytes) -> None:
        self.consumer_tag = consumer_tag
        self.properties = b""
        self.parts: list[bytes] = []
        self.remaining = 0


class DeliveryTap:
    """One connection's stream. Bytes that aren't AMQP frames pass through untouched from there on."""

    def __init__(self) -> None:
        self._partial = bytearray()  # the beginning of a frame
        self._needed = 0  # bytes that it must have before another look is worth it
        self._open: dict[int, _Content] = {}  # by channel
        self._deaf = False
        #: Code and text of the broker's last word, which aiormq loses in the middle of a handshake.
        self.closed_by_broker: tuple[int, str] | None = None

    def feed(self, data: bytes) -> tuple[bytes, list[TappedDelivery]]:
        """What the broker sent: the bytes for the library, and the deliveries that are complete now."""
        if self._deaf:
            return data, []
        if self._partial:
            self._partial += data
            if len(self._partial) < self._needed:
                return b"", []
            data = bytes(self._partial)
            self._partial.clear()
        return self._split(data)

    def _split(self, data: bytes) -> tuple[bytes, list[TappedDelivery]]:
        deliveries: list[TappedDelivery] = []
        passed: list[bytes] = []
        end, position, taken_to = len(data), 0, 0
        self._needed = _FRAME_OVERHEAD
        while end - position >= _FRAME_OVERHEAD:
            kind, channel, size = _FRAME.unpack_from(data, position)
            stop = position + size + _FRAME_OVERHEAD
            if kind not in (_METHOD, _HEADER, _BODY, _HEARTBEAT) or (stop <= end and data[stop - 1] != _END):
                self._deaf = True
                position = end
                break
            if stop > end:
                self._needed = stop - position
                break
            if self._takes(kind, channel, data, position + 7, stop - 1, deliveries):
                if taken_to < position:
                    passed.append(data[taken_to:position])
                taken_to = stop
            position = stop
        if taken_to < position:
            passed.append(data[taken_to:position])
        if position < end:
            self._partial += data[position:]
        return b"".join(passed), deliveries

    def _takes(
        self, kind: int, channel: int, data: bytes, start: int, stop: int, deliveries: list[TappedDelivery]
    ) -> bool:
        """Whether this frame's payload is part of a delivery; a complete one is appended."""
        if kind == _METHOD:
            if data[start : start + 4] != _DELIVER:
                if data[start : start + 4] == _CONNECTION_CLOSE:
                    text = data[start + 7 : start + 7 + data[start + 6]]
                    code = int.from_bytes(data[start + 4 : start + 6])
                    self.closed_by_broker = code, text.decode(errors="replace")
                return False
            tag_end = start + 5 + data[start + 4]
            self._open[channel] = _Content(data[start + 5 : tag_end])
            return True
        content = self._open.get(channel)
        if content is None or kind == _HEARTBEAT:
            return False
        if kind == _HEADER:
            (content.remaining,) = _BODY_SIZE.unpack_from(data, start + 4)
            content.properties = data[start + 12 : stop]
        else:
            content.parts.append(data[start:stop])
            content.remaining -= stop - start
        if content.remaining <= 0:
            del self._open[channel]
            parts = content.parts
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            deliveries.append(TappedDelivery(content.consumer_tag, content.properties, body))
        return True
