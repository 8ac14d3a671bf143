"""Reads originals and writes their copies, and decodes no more than the lane needs.

A copy is the original byte for byte, apart from the headers that are taken out and appended (contract
section 5). Both directions are on the hot path: one call each per message.
"""

from __future__ import annotations

import re
from base64 import b64encode
from binascii import hexlify
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Final

from dispatcher.amqp import wire
from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import Grouping, field_number, header_key, readable_fields
from dispatcher.amqp.properties import (
    DELIVERY_MODE,
    EXPIRATION,
    HEADERS,
    NOWHERE,
    USER_ID,
    field,
    number_field,
    spans_after_table,
    split_table,
    string_field,
)  # fmt: skip
from dispatcher.errors import ProtocolViolation
from dispatcher.wire.protocol import (
    BROKER_HEADERS,
    HEADER_ATTEMPT,
    HEADER_CALLS,
    HEADER_DEADLINE,
    HEADER_DELIVERY_COUNT,
    HEADER_EPOCH,
    HEADER_EXCHANGE,
    HEADER_GROUP,
    HEADER_GROUP_BASE64,
    HEADER_GROUP_SEQ,
    HEADER_ID,
    HEADER_MARKER,
    HEADER_ORIGIN,
    HEADER_PREFIX,
    HEADER_REASON,
    HEADER_ROUTING_KEY,
    HEADER_SEQ,
    HEADER_USER_ID,
    TYPE_MARKER,
)  # fmt: skip

FINGERPRINT_BYTES: Final = 16
#: Its copies hash fingerprints: to make a hash object with its settings takes as long as a small message.
_NOTHING_HASHED: Final = blake2b(digest_size=FINGERPRINT_BYTES)
#: Whatever property list we could not read, as one header of the dead queue's copy.
HEADER_PROPERTIES: Final = HEADER_PREFIX + "properties"
#: A consumer's reason may be long; with this much the smallest frame that AMQP knows (4,096) is enough.
REASON_BYTES_MAX: Final = 1_024
#: Above this a body is hashed on its own: copying it once more would cost more than the call.
_JOINED_BODY_BYTES_MAX: Final = 8_192
#: RabbitMQ takes a leading plus sign, and no number that needs more digits than these.
_EXPIRATION: Final = re.compile(rb"\+?[0-9]{1,19}")


_TYPE_MARKER: Final = TYPE_MARKER.encode()
_MARKER: Final = string_field(HEADER_MARKER.encode(), b"")[:-4]
_DELIVERY_COUNT: Final = header_key(HEADER_DELIVERY_COUNT)
_BROKER_FIELDS: Final = tuple(bytes((len(name),)) + name.encode() for name in BROKER_HEADERS)

#: In a copy that is an original by itself, parked or handed over: what the first one had.
HEADER_DELIVERY_MODE: Final = "x-dispatch-delivery-mode"
#: In it: that had none.
_ABSENT_MODE: Final = -1
_pack_lengths: Final = Struct(">BBBBHII").pack
_pack_u32: Final = wire.pack_u32


class Content:
    """One original as the edge keeps it: the values that were read from it, and the pieces of its copies."""

    __slots__ = (
        "group", "closing", "expiration_ms", "marker", "refusal", "fingerprint",
        "exchange", "routing_key", "properties", "table_at", "table_end", "body", "origin", "number",
    )  # fmt: skip

    def __init__(
        self, group: bytes | None, closing: bool, refusal: str | None, fingerprint: bytes,
        exchange: bytes, routing_key: bytes, properties: bytes, table_at: int, table_end: int, body: bytes,
    ) -> None:  # fmt: skip
        self.group = group  # as it came; None: it has none
        self.closing = closing  # its negative sequence closes the group
        self.expiration_ms: int | None = None  # from its delivery on
        self.marker: str | None = None  # it is the marker of an operation with this uuid: never work
        self.refusal = refusal  # why it can't be relayed; it names the header or property
        self.fingerprint = fingerprint  # 16 bytes, the same for every delivery of this original
        self.exchange = exchange  # that it was published to
        self.routing_key = routing_key
        self.properties = properties  # relayed ones: without expiration, user id, some headers
        self.table_at = table_at  # first header in it; there is always a table
        self.table_end = table_end
        self.body = body
        self.origin: str | None = None  # of one that was parked: where it was first
        self.number: int | None = None  # of its sequence header, where the lane checks it

    @property
    def size(self) -> int:
        """Bytes of names, properties and body that it keeps in memory."""
        return len(self.properties) + len(self.body) + len(self.exchange) + len(self.routing_key)

    def add_field(self, added: bytes) -> None:
        """One more header for all that is made of it from now on."""
        before, table = self.properties[: self.table_at - 4], self.properties[self.table_at : self.table_end]
        _set_properties(self, before, table + added, self.properties[self.table_end :])


def read_content(delivery: Delivery, grouping: Grouping) -> Content:
    """Read what the dispatcher needs of a message; the reason for not accepting it becomes `refusal`."""
    _, _, _, _, exchange, routing_key, properties, body = delivery
    try:
        fields, table_at, table_end = split_table(properties)
        suspect = grouping.search_suspect(properties)
        readable = readable_fields(fields, properties) if suspect else fields
        group, refusal = grouping.find(readable, properties, table_end, routing_key)
        sent = fields
        if suspect:
            sent = [field for field in fields if not field.startswith(_BROKER_FIELDS)]
        content = Content(
            group, grouping.closes(readable), refusal,
            _fingerprint(exchange, routing_key, properties, sent, table_at, table_end, body),
            exchange, routing_key, properties, table_at, table_end, body,
        )  # fmt: skip
        if grouping.reads_numbers:
            content.number = grouping.number(readable)
        if suspect or properties[0] & (HEADERS | EXPIRATION) != HEADERS or properties[1] & USER_ID:
            _clean(content, fields, grouping)
    except ProtocolViolation as problem:
        return _unreadable(delivery, str(problem))
    return content


def delivery_count(properties: bytes) -> int:
    """How often a quorum queue has delivered the message before; 0: no queue has counted that."""
    if _DELIVERY_COUNT not in properties:
        return 0
    fields, _, _ = split_table(properties)
    counts = [field_number(one, len(_DELIVERY_COUNT)) for one in fields if one.startswith(_DELIVERY_COUNT)]
    return int(counts[0] or 0) if counts else 0


def _fingerprint(
    exchange: bytes, routing_key: bytes, properties: bytes, fields: list[bytes],
    table_at: int, table_end: int, body: bytes,
) -> bytes:  # fmt: skip
    """Identify an original: equal for every delivery of it, different when any byte of it differs.

    A quorum queue adds a header to a redelivery and sorts the whole table by name, so the fields go in
    sorted; no table and an empty one are the same, and the two flag bits that RabbitMQ drops don't count.
    """
    table = b"".join(sorted(fields))
    high, low = properties[0], properties[1] & 0xFC
    head = properties[2 : table_at - 4 if high & HEADERS else table_at]
    tail = properties[table_end:]
    lengths = _pack_lengths(
        len(exchange), len(routing_key), high & ~HEADERS, low, len(head), len(table), len(tail)
    )
    digest = _NOTHING_HASHED.copy()
    if len(body) > _JOINED_BODY_BYTES_MAX:
        digest.update(b"".join((lengths, exchange, routing_key, head, table, tail)))
        digest.update(body)
    else:
        digest.update(b"".join((lengths, exchange, routing_key, head, table, tail, body)))
    return digest.digest()


def _clean(content: Content, fields: list[bytes], grouping: Grouping) -> None:
    """Remove the properties and headers that are not relayed. Raises ProtocolViolation."""
    properties = content.properties
    flags, spans = bytearray(properties[:2]), spans_after_table(properties, content.table_end)
    start, end = spans.get("type", NOWHERE)
    if properties[start + 1 : end] == _TYPE_MARKER:
        for each in fields:
            if each.startswith(_MARKER):
                content.marker = each[len(_MARKER) + 4 :].decode(errors="replace")
    kept = [field for field in fields if grouping.is_relayed(field, content.exchange)]
    tail = properties[content.table_end :]
    # The user id lies behind the expiration: taken out first, it leaves the other's place valid.
    if "user_id" in spans:
        start, end = spans["user_id"]
        kept.append(string_field(HEADER_USER_ID.encode(), properties[start + 1 : end]))
        tail = tail[: start - content.table_end] + tail[end - content.table_end :]
        flags[1] &= ~USER_ID
    if "expiration" in spans:
        start, end = spans["expiration"]
        _read_expiration(content, properties[start + 1 : end])
        tail = tail[: start - content.table_end] + tail[end - content.table_end :]
        flags[0] &= ~EXPIRATION
    head = properties[2 : content.table_at - 4 if flags[0] & HEADERS else content.table_at]
    flags[0] |= HEADERS
    _set_properties(content, bytes(flags) + head, b"".join(kept), tail)


def _set_properties(content: Content, head: bytes, table: bytes, tail: bytes) -> None:
    content.properties = b"".join((head, _pack_u32(len(table)), table, tail))
    content.table_at = len(head) + 4
    content.table_end = content.table_at + len(table)


def _read_expiration(content: Content, text: bytes) -> None:
    if _EXPIRATION.fullmatch(text):
        content.expiration_ms = int(text)
    elif content.refusal is None:
        content.refusal = f"its expiration {text.decode(errors='replace')!r} is not a number of milliseconds"


def _unreadable(delivery: Delivery, problem: str) -> Content:
    """A message whose property list is malformed: that list is kept whole, as one header."""
    raw = delivery.properties
    lengths = _pack_lengths(len(delivery.exchange), len(delivery.routing_key), 0, 0, 0, 0, len(raw))
    parts = (lengths, delivery.exchange, delivery.routing_key, raw, delivery.body)
    content = Content(
        None, False, problem, blake2b(b"".join(parts), digest_size=FINGERPRINT_BYTES).digest(),
        delivery.exchange, delivery.routing_key, b"", 0, 0, delivery.body,
    )  # fmt: skip
    table = field(HEADER_PROPERTIES.encode(), b"x", _pack_u32(len(raw)) + raw)
    _set_properties(content, bytes((HEADERS, 0)), table, b"")
    return content


# --- copies ---------------------------------------------------------------------------------------------


def _number_head(name: str) -> bytes:
    return field(name.encode(), b"l", b"")


_SEQ: Final = _number_head(HEADER_SEQ)
_EPOCH: Final = _number_head(HEADER_EPOCH)
_ATTEMPT: Final = _number_head(HEADER_ATTEMPT)
_GROUP_SEQ: Final = _number_head(HEADER_GROUP_SEQ)
_DEADLINE: Final = _number_head(HEADER_DEADLINE)
_ID: Final = field(HEADER_ID.encode(), b"S", _pack_u32(2 * FINGERPRINT_BYTES))
_GROUP: Final = field(HEADER_GROUP.encode(), b"S", b"")
_NUMBERS: Final = f">{len(_SEQ)}sq{len(_EPOCH)}sq{len(_ATTEMPT)}sq{len(_ID)}s{2 * FINGERPRINT_BYTES}s"
_pack_numbers: Final = Struct(_NUMBERS).pack
_pack_grouped: Final = Struct(f"{_NUMBERS}{len(_GROUP_SEQ)}sq{len(_GROUP)}sI").pack
_pack_deadline: Final = Struct(f">{len(_DEADLINE)}sq").pack


@lru_cache(256)
def _first_field(name: str) -> bytes:
    return field(name.encode(), b"t", b"\x01")


def _in_base64(group: bytes) -> bytes:
    """The field that libraries can read which take every string for UTF-8; b"": it is UTF-8."""
    try:
        group.decode()
    except UnicodeDecodeError:
        return string_field(HEADER_GROUP_BASE64.encode(), b64encode(group))
    return b""


def copy_frames(
    content: Content,
    *,
    channel: int,
    exchange: str,
    routing_key: str,
    group: bytes | None,
    seq: int,
    group_seq: int,
    epoch: int,
    attempt: int,
    deadline_at_ms: int | None = None,
    first_header: str | None = None,
    frame_max: int,
    origin: str | None = None,
) -> bytes | None:
    """The mandatory publish of a copy; None when its headers don't fit in a frame.

    With an `origin` it is for a hand-over consumer: persistent, and it says all that is needed to hand it on.

    Without a group (None) it carries neither x-dispatch-group nor x-dispatch-group-seq. `first_header` is
    given for the first message of a group for its consumer only.
    """
    added = _added_headers(content, group, seq, group_seq, epoch, attempt, deadline_at_ms, first_header)
    properties, table_at, table_end = content.properties, content.table_at, content.table_end
    head, tail = properties[: table_at - 4], properties[table_end:]
    if origin is not None:
        head, added, tail = _for_hand_over(content, origin, head, added, tail)
    elif head[0] & DELIVERY_MODE:
        tail = b"\x01" + tail[1:]
    body = content.body
    size = wire.HEADER_HEAD_BYTES + table_end + len(added) + len(tail)
    if size > frame_max - wire.FRAME_OVERHEAD_BYTES:
        return None
    parts = (
        wire.publish_frame(channel, exchange, routing_key),
        wire.pack_header_head(wire.FRAME_HEADER, channel, size, wire.BASIC_CONTENT, len(body)),
        head,
        _pack_u32(table_end - table_at + len(added)),
        properties[table_at:table_end], added, tail,
    )  # fmt: skip
    if 0 < len(body) <= frame_max - wire.FRAME_OVERHEAD_BYTES:
        body_head = wire.pack_body_head(wire.FRAME_END, wire.FRAME_BODY, channel, len(body))
        return b"".join((*parts, body_head, body, wire.END))
    return b"".join((*parts, wire.END, *wire.body_frames(channel, body, frame_max)))


def bundle_entry(
    content: Content, *, group: bytes | None, seq: int, group_seq: int, epoch: int, attempt: int,
    deadline_at_ms: int | None = None, first_header: str | None = None,
) -> bytes:  # fmt: skip
    """A copy as it stands in a bundle: property list and body of what `copy_frames` would publish."""
    added = _added_headers(content, group, seq, group_seq, epoch, attempt, deadline_at_ms, first_header)
    properties, table_at, table_end = content.properties, content.table_at, content.table_end
    mode, body = b"\x01" if properties[0] & DELIVERY_MODE else b"", content.body
    return b"".join((
        _pack_u32(len(properties) + len(added)), properties[: table_at - 4],
        _pack_u32(table_end - table_at + len(added)), properties[table_at:table_end], added,
        mode, properties[table_end + len(mode) :], _pack_u32(len(body)), body,
    ))  # fmt: skip


def _added_headers(
    content: Content, group: bytes | None, seq: int, group_seq: int, epoch: int, attempt: int,
    deadline_at_ms: int | None, first_header: str | None,
) -> bytes:  # fmt: skip
    identity = hexlify(content.fingerprint)
    if group is None:
        added = _pack_numbers(_SEQ, seq, _EPOCH, epoch, _ATTEMPT, attempt, _ID, identity)
    else:
        added = _pack_grouped(
            _SEQ, seq, _EPOCH, epoch, _ATTEMPT, attempt, _ID, identity,
            _GROUP_SEQ, group_seq, _GROUP, len(group),
        ) + group  # fmt: skip
        if not group.isascii():
            added += _in_base64(group)
    if deadline_at_ms is not None:
        added += _pack_deadline(_DEADLINE, deadline_at_ms)
    if first_header is not None:
        added += _first_field(first_header)
    return added


def _for_hand_over(
    content: Content, origin: str, head: bytes, added: bytes, tail: bytes
) -> tuple[bytes, bytes, bytes]:
    """Persistent: it takes over the original's role; and where it came from, which dead letters say."""
    mode = 0 if head[0] & DELIVERY_MODE else DELIVERY_MODE
    added += b"".join((
        number_field(HEADER_DELIVERY_MODE, _ABSENT_MODE if mode or not tail else tail[0]),
        string_field(HEADER_ORIGIN.encode(), origin.encode()),
        string_field(HEADER_EXCHANGE.encode(), content.exchange),
        string_field(HEADER_ROUTING_KEY.encode(), content.routing_key),
    ))  # fmt: skip
    return bytes((head[0] | mode,)) + head[1:], added, b"\x02" + tail[0 if mode else 1 :]


def dead_frames(
    content: Content,
    *,
    channel: int,
    exchange: str,
    routing_key: str,
    reason: str,
    attempt: int,
    calls: int,
    group: bytes | None,
    origin: str,
    frame_max: int,
) -> bytes:
    """The mandatory publish of an original to the dead queue: persistent, and it says why it is there.

    What doesn't fit in a header frame is left out: first everything added but the reason, then the
    original's own headers, and the reason says so.
    """
    essential = _reason_field(reason)
    added = essential + field(HEADER_ATTEMPT.encode(), b"l", attempt.to_bytes(8, signed=True))
    if calls:
        added += field(HEADER_CALLS.encode(), b"l", calls.to_bytes(8, signed=True))
    if group is not None:
        added += string_field(HEADER_GROUP.encode(), group)
    added += string_field(HEADER_ORIGIN.encode(), origin.encode())
    added += string_field(HEADER_EXCHANGE.encode(), content.exchange)
    added += string_field(HEADER_ROUTING_KEY.encode(), content.routing_key)
    head = bytearray(content.properties[: content.table_at - 4])
    table = content.properties[content.table_at : content.table_end]
    tail = content.properties[content.table_end + (1 if head[0] & DELIVERY_MODE else 0) :]
    head[0] |= DELIVERY_MODE
    room = frame_max - wire.FRAME_OVERHEAD_BYTES - wire.HEADER_HEAD_BYTES - len(head) - 5 - len(tail)
    if len(table) + len(essential) > room:
        reason = f"its {len(table)} bytes of headers don't fit in a frame and were left out; {reason}"
        table, added = b"", _reason_field(reason)
    elif len(table) + len(added) > room:
        added = essential
    properties = bytes(head) + _pack_u32(len(table) + len(added)) + table + added + b"\x02" + tail
    return wire.publish_frame(channel, exchange, routing_key) + wire.content_frames(
        channel, properties, content.body, frame_max
    )


def _reason_field(reason: str) -> bytes:
    return string_field(HEADER_REASON.encode(), reason.encode(errors="replace")[:REASON_BYTES_MAX])
