"""Bytes of the broker, in any pieces, become events.

Deliveries are the hot path: where method, header and body frame of a message lie in the buffer, one pass
reads all three. Everything else goes frame by frame. Names, properties and bodies stay bytes; the modules
that need them decode them.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, error
from typing import Any, Final

from dispatcher.amqp import wire
from dispatcher.amqp.events import Confirmed, ConnectionEvent, Delivery, Fetched, Returned
from dispatcher.errors import ProtocolViolation

#: What we ask for; RabbitMQ's own default. Larger frames would only delay the others on the connection.
FRAME_MAX: Final = 131_072
#: The broker may add to a header table that filled its frame already (x-death repeats the routing keys),
#: and it sends that header in one frame whatever was negotiated.
_HEADER_FRAME_BYTES_MAX: Final = 4 * FRAME_MAX
#: RabbitMQ's ceiling for max_message_size. More is a broken stream, not a message to wait for.
BODY_BYTES_MAX: Final = 512 << 20

_TLS_ALERT: Final = 0x15
_FRAME_KINDS: Final = (wire.FRAME_METHOD, wire.FRAME_HEADER, wire.FRAME_BODY, wire.FRAME_HEARTBEAT)
_MESSAGE_METHODS: Final = (
    wire.BASIC_DELIVER, wire.BASIC_ACK, wire.BASIC_NACK, wire.BASIC_RETURN, wire.BASIC_GET_OK,
)  # fmt: skip

#: End mark of the frame before, type and channel of the next one, read as one number.
_HEADER_MARK: Final = wire.FRAME_END << 24 | wire.FRAME_HEADER << 16
_BODY_MARK: Final = wire.FRAME_END << 24 | wire.FRAME_BODY << 16
_HEADER_BYTES_MIN: Final = wire.HEADER_HEAD_BYTES + 2

_read_frame_head: Final = Struct(">BHI").unpack_from
_read_u32: Final = Struct(">I").unpack_from
# For each message, so with types that spare mypyc to compute with objects.
#: Kind, channel, size, method, length of the consumer tag.
_read_deliver_head: Final[Callable[[bytes, int], tuple[int, int, int, int, int]]] = Struct(
    ">BHIIB"
).unpack_from
#: Tag, redelivered, length of the exchange.
_read_deliver_middle: Final[Callable[[bytes, int], tuple[int, int, int]]] = Struct(">QBB").unpack_from
#: Mark, size, class and weight, body size.
_read_header: Final[Callable[[bytes, int], tuple[int, int, int, int]]] = Struct(">IIIQ").unpack_from
#: Mark, size.
_read_body_head: Final[Callable[[bytes, int], tuple[int, int]]] = Struct(">II").unpack_from
_read_content_head: Final = Struct(">IQ").unpack_from
_read_confirm: Final = Struct(">QB").unpack_from
_read_u16: Final = Struct(">H").unpack_from
_new: Final = tuple.__new__


class _Content:
    """A message of which not all frames are here yet."""

    __slots__ = ("fields", "kind", "missing", "pieces", "properties")

    def __init__(self, kind: type[Delivery | Returned | Fetched], fields: tuple[Any, ...]) -> None:
        self.kind = kind
        self.fields = fields  # of the event, all but the last two
        self.properties: bytes | None = None  # None: the header frame is next
        self.missing = 0  # bytes of the body
        self.pieces: list[bytes] = []


class Decoder:
    """Splits the stream into frames and puts messages together.

    `on_method(channel, index, arguments, events)` gets every method that carries no message and is no
    confirm, `on_fetched` what basic.get brought. Its owner says which channels are open.
    """

    def __init__(
        self,
        on_method: Callable[[int, int, bytes, list[ConnectionEvent]], None],
        on_fetched: Callable[[int, Fetched], None],
    ) -> None:
        self._on_method = on_method
        self._on_fetched = on_fetched
        self._pieces: list[bytes] = []  # an unfinished frame
        self._held_bytes = 0
        self._needed_bytes = 0  # nothing can be decoded before this many are here
        self._ready: set[int] = set()  # open channels that are between two messages
        self._contents: dict[int, _Content] = {}  # the others
        self._closed: set[int] = set()  # channels of which RabbitMQ may still send what it had under way
        self._muted = False  # we are closing the connection: only channel 0 counts
        self._stopped = False

    def open_channel(self, channel: int) -> None:
        """Messages and confirms may come on this channel from now on."""
        self._closed.discard(channel)
        self._ready.add(channel)

    def close_channel(self, channel: int) -> None:
        """Ignore what still comes on it, until it is opened again.

        RabbitMQ's channel.close overtakes deliveries and confirms: another of its processes writes these.
        """
        self._closed.add(channel)
        self._ready.discard(channel)
        self._contents.pop(channel, None)

    def mute(self) -> None:
        """From now on ignore every channel but 0."""
        self._muted = True
        self._ready.clear()
        self._contents.clear()

    def stop(self) -> None:
        """Read nothing more, not even the rest of the bytes in hand."""
        self._stopped = True

    def feed(self, data: bytes, events: list[ConnectionEvent]) -> None:
        """Append what `data` completes. Raises ProtocolViolation; the decoder is of no use after that."""
        if self._pieces:
            self._pieces.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed_bytes:
                return
            data = b"".join(self._pieces)
            self._pieces = []
        at, end = 0, len(data)
        while at < end and not self._stopped:
            at = self._read_deliveries(data, at, events)
            following = self._read_frame(data, at, end, events) if at < end else end
            if following < 0:
                self._pieces = [data[at:]]
                self._held_bytes = end - at
                return
            at = following

    def _read_deliveries(self, data: bytes, at: int, events: list[ConnectionEvent]) -> int:
        """Read messages for as long as one is complete in three frames; return where it stopped.

        It stops at anything unusual and leaves that to `_read_frame`, which also reports the errors.
        """
        ready = self._ready
        try:
            while True:
                kind, channel, size, index, length = _read_deliver_head(data, at)
                if index != wire.BASIC_DELIVER or kind != wire.FRAME_METHOD or channel not in ready:
                    return at
                tag_at = at + 12 + length
                tag, redelivered, length = _read_deliver_middle(data, tag_at)
                key_at = tag_at + 10 + length
                method_end = key_at + 1 + data[key_at]
                mark, header_bytes, content, body_bytes = _read_header(data, method_end)
                header_end = method_end + 8 + header_bytes
                body_mark, frame_bytes = _read_body_head(data, header_end)
                body_at = header_end + 8
                body_end = body_at + frame_bytes
                if (
                    data[body_end] != wire.FRAME_END
                    or mark != _HEADER_MARK | channel
                    or body_mark != _BODY_MARK | channel
                    or body_bytes != frame_bytes
                    or content != wire.BASIC_CONTENT
                    or header_bytes < _HEADER_BYTES_MIN
                    or method_end != at + 7 + size
                ):
                    return at
                events.append(
                    _new(
                        Delivery,
                        (
                            channel, data[at + 12 : tag_at], tag, redelivered == 1,
                            data[tag_at + 10 : key_at], data[key_at + 1 : method_end],
                            data[method_end + 20 : header_end], data[body_at:body_end],
                        ),
                    )
                )  # fmt: skip
                at = body_end + 1
        except (error, IndexError):  # the rest of this message isn't here yet
            return at

    def _read_frame(self, data: bytes, at: int, end: int, events: list[ConnectionEvent]) -> int:
        """Read one frame; return where the next one begins, -1 when this one isn't complete."""
        if data[at] not in _FRAME_KINDS:
            hint = " (perhaps it expects TLS)" if data[at] == _TLS_ALERT else ""
            raise ProtocolViolation(
                f"the broker does not speak AMQP 0-9-1{hint}: it sent {data[at : at + 16]!r}"
            )
        if end - at < wire.FRAME_OVERHEAD_BYTES:
            self._needed_bytes = wire.FRAME_OVERHEAD_BYTES
            return -1
        kind, channel, size = _read_frame_head(data, at)
        if size > (FRAME_MAX if kind == wire.FRAME_BODY else _HEADER_FRAME_BYTES_MAX):
            raise ProtocolViolation(f"the broker sent a frame of {size} bytes")
        payload_end: int = at + 7 + size
        if payload_end >= end:
            self._needed_bytes = size + wire.FRAME_OVERHEAD_BYTES
            return -1
        if data[payload_end] != wire.FRAME_END:
            raise ProtocolViolation("the broker sent a frame without its end mark")
        self._read_payload(kind, channel, data[at + 7 : payload_end], events)
        return payload_end + 1

    def _read_payload(self, kind: int, channel: int, payload: bytes, events: list[ConnectionEvent]) -> None:
        if kind == wire.FRAME_HEARTBEAT:
            if channel or payload:
                raise ProtocolViolation("the broker sent a heartbeat with a channel or content")
        elif (self._muted and channel) or (channel in self._closed and not _is_opened(kind, payload)):
            return
        elif kind == wire.FRAME_METHOD:
            self._read_method(channel, payload, events)
        else:
            self._read_content(kind, channel, payload, events)

    def _read_method(self, channel: int, payload: bytes, events: list[ConnectionEvent]) -> None:
        try:
            (index,) = _read_u32(payload)
            if channel in self._contents:
                raise ProtocolViolation(f"the broker sent a method inside a message (channel {channel})")
            if index not in _MESSAGE_METHODS:
                self._on_method(channel, index, payload[4:], events)
            elif channel not in self._ready:
                raise ProtocolViolation(f"the broker used channel {channel}, which is not open")
            elif index == wire.BASIC_ACK or index == wire.BASIC_NACK:
                tag, bits = _read_confirm(payload, 4)
                events.append(Confirmed(channel, tag, bits & 1 == 1, index == wire.BASIC_NACK))
            else:
                self._contents[channel] = _read_content_start(channel, index, payload)
                self._ready.discard(channel)
        except (error, IndexError):
            raise ProtocolViolation("the broker sent a method that is too short") from None

    def _read_content(self, kind: int, channel: int, payload: bytes, events: list[ConnectionEvent]) -> None:
        content = self._contents.get(channel)
        if content is None or (kind == wire.FRAME_HEADER) != (content.properties is None):
            raise ProtocolViolation(f"the broker sent content out of order (channel {channel})")
        if content.properties is None:
            if len(payload) < _HEADER_BYTES_MIN:
                raise ProtocolViolation("the broker sent a header frame that is too short")
            content_class, content.missing = _read_content_head(payload)
            if content_class != wire.BASIC_CONTENT or content.missing > BODY_BYTES_MAX:
                raise ProtocolViolation(f"the broker announced a body of {content.missing} bytes")
            content.properties = payload[wire.HEADER_HEAD_BYTES :]
        else:
            content.missing -= len(payload)
            content.pieces.append(payload)
            if content.missing < 0:
                raise ProtocolViolation("the broker sent more of a body than it announced")
        if not content.missing:
            del self._contents[channel]
            self._ready.add(channel)
            event = _new(content.kind, (*content.fields, content.properties, b"".join(content.pieces)))
            if isinstance(event, Fetched):
                self._on_fetched(channel, event)
            else:
                events.append(event)


def _is_opened(kind: int, payload: bytes) -> bool:
    return kind == wire.FRAME_METHOD and payload[:4] == wire.CHANNEL_OPEN_OK.to_bytes(4)


def _read_content_start(channel: int, index: int, payload: bytes) -> _Content:
    """What basic.deliver, basic.return or basic.get-ok say before their message comes."""
    if index == wire.BASIC_DELIVER:
        consumer_tag, at = read_short(payload, 4)
        tag, redelivered, _ = _read_deliver_middle(payload, at)
        exchange, at = read_short(payload, at + 9)
        routing_key, at = read_short(payload, at)
        fields: tuple[Any, ...] = (channel, consumer_tag, tag, redelivered == 1, exchange, routing_key)
        content = _Content(Delivery, fields)
    elif index == wire.BASIC_RETURN:
        (code,) = _read_u16(payload, 4)
        text, at = read_short(payload, 6)
        exchange, at = read_short(payload, at)
        routing_key, at = read_short(payload, at)
        content = _Content(Returned, (channel, code, text.decode(errors="replace"), exchange, routing_key))
    else:
        tag, redelivered, _ = _read_deliver_middle(payload, 4)
        exchange, at = read_short(payload, 13)
        routing_key, at = read_short(payload, at)
        (count,) = _read_u32(payload, at)
        at += 4
        content = _Content(Fetched, (tag, redelivered == 1, exchange, routing_key, count))
    if at != len(payload):
        raise ProtocolViolation("the broker sent a method that is too long")
    return content


def read_short(payload: bytes, at: int) -> tuple[bytes, int]:
    """The short string at `at`, and where it ends. Raises IndexError when it isn't all there."""
    end = at + 1 + payload[at]
    if end > len(payload):
        raise IndexError
    return payload[at + 1 : end], end
