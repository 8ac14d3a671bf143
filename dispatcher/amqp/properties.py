"""The raw property list of a message: two bytes of flags, then the present properties in a fixed order.

The header table is split into its top-level fields and no further: nested tables and arrays are skipped by
their length, so depth costs nothing. RabbitMQ ignores the two lowest flag bits, and so does this module.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, error
from typing import Final

from dispatcher.errors import ProtocolViolation

# The first flag byte, in the order of the properties.
CONTENT_TYPE: Final = 0x80
CONTENT_ENCODING: Final = 0x40
HEADERS: Final = 0x20
DELIVERY_MODE: Final = 0x10
PRIORITY: Final = 0x08
CORRELATION_ID: Final = 0x04
REPLY_TO: Final = 0x02
EXPIRATION: Final = 0x01
# The second one.
MESSAGE_ID: Final = 0x80
TIMESTAMP: Final = 0x40
TYPE: Final = 0x20
USER_ID: Final = 0x10
APP_ID: Final = 0x08
CLUSTER_ID: Final = 0x04

#: The properties behind the header table: name, flag byte, bit, size (0: a short string).
_AFTER_TABLE: Final = (
    ("delivery_mode", 0, DELIVERY_MODE, 1),
    ("priority", 0, PRIORITY, 1),
    ("correlation_id", 0, CORRELATION_ID, 0),
    ("reply_to", 0, REPLY_TO, 0),
    ("expiration", 0, EXPIRATION, 0),
    ("message_id", 1, MESSAGE_ID, 0),
    ("timestamp", 1, TIMESTAMP, 8),
    ("type", 1, TYPE, 0),
    ("user_id", 1, USER_ID, 0),
    ("app_id", 1, APP_ID, 0),
    ("cluster_id", 1, CLUSTER_ID, 0),
)

#: The span of an absent string: empty, and behind a length byte like all others.
NOWHERE: Final = (0, 1)
#: Longer than any frame: a field of an unknown type ends behind its table, which is an error.
_UNKNOWN: Final = 1 << 40
#: Bytes of a field's value with its type byte, by type; 0: a length of four bytes follows.
_VALUE_BYTES: Final = [_UNKNOWN] * 256
for _types, _bytes in (("V", 1), ("tbB", 2), ("su", 3), ("Iif", 5), ("D", 6), ("lLdT", 9), ("SxAF", 0)):
    for _type in _types:
        _VALUE_BYTES[ord(_type)] = _bytes

_read_u32: Final[Callable[[bytes, int], tuple[int]]] = Struct(">I").unpack_from


def split_table(properties: bytes) -> tuple[list[bytes], int, int]:
    """The fields of the header table (name, type and value each), where the first begins and the last ends.

    Without a table both places are where one would be put. Raises ProtocolViolation.
    """
    fields: list[bytes] = []
    try:
        flags, at = properties[0], 2
        if flags & CONTENT_TYPE:
            at += 1 + properties[at]
        if flags & CONTENT_ENCODING:
            at += 1 + properties[at]
        if not flags & HEADERS:
            if at > len(properties):
                raise ProtocolViolation("its property list is cut short")
            return fields, at, at
        (size,) = _read_u32(properties, at)
        start = at = at + 4
        end = start + size
        while at < end:
            value_at = at + 1 + properties[at]
            size = _VALUE_BYTES[properties[value_at]]
            following = value_at + (size or 5 + _read_u32(properties, value_at + 1)[0])
            fields.append(properties[at:following])
            at = following
    except (IndexError, error):
        raise ProtocolViolation("its property list is cut short") from None
    if at != end or end > len(properties):
        raise ProtocolViolation("its header table is malformed")
    return fields, start, end


def spans_after_table(properties: bytes, at: int) -> dict[str, tuple[int, int]]:
    """Where each present property behind the header table lies, lengths of strings included.

    `at` is where the table ends. Raises ProtocolViolation.
    """
    spans = {}
    try:
        for name, flag_byte, bit, size in _AFTER_TABLE:
            if properties[flag_byte] & bit:
                end = at + (size or 1 + properties[at])
                spans[name] = (at, end)
                at = end
    except IndexError:
        raise ProtocolViolation("its property list is cut short") from None
    if at != len(properties):
        raise ProtocolViolation("its property list does not match its flags")
    return spans


def string_property(properties: bytes, table_end: int, name: str) -> bytes:
    """The value of a short-string property, empty when absent. Raises ProtocolViolation."""
    if name in ("content_type", "content_encoding"):
        at = 2
        if name == "content_encoding" and properties[0] & CONTENT_TYPE:
            at += 1 + properties[at]
        present = properties[0] & (CONTENT_TYPE if name == "content_type" else CONTENT_ENCODING)
        return properties[at + 1 : at + 1 + properties[at]] if present else b""
    start, end = spans_after_table(properties, table_end).get(name, NOWHERE)
    return properties[start + 1 : end]


def user_property(properties: bytes) -> str | None:
    """The user of the connection that published it, which RabbitMQ has validated; None: it does not say."""
    try:
        _, _, table_end = split_table(properties)
        return string_property(properties, table_end, "user_id").decode(errors="replace") or None
    except ProtocolViolation:
        return None


def type_property(properties: bytes, at: int) -> bytes:
    """The same for `type` alone, in a fraction of the time: a ledger asks for it of every message. `at` is
    where the table ends."""
    first, second = properties[0], properties[1]
    if not second & TYPE:
        return b""
    at += (first >> 4 & 1) + (first >> 3 & 1)  # delivery mode, priority
    try:
        for present in (first & CORRELATION_ID, first & REPLY_TO, first & EXPIRATION, second & MESSAGE_ID):
            if present:
                at += 1 + properties[at]
        if second & TIMESTAMP:
            at += 8
        return properties[at + 1 : at + 1 + properties[at]]
    except IndexError:
        raise ProtocolViolation("its property list is cut short") from None


def field(name: bytes, kind: bytes, value: bytes) -> bytes:
    """One field of a header table."""
    return bytes((len(name),)) + name + kind + value


def string_field(name: bytes, value: bytes) -> bytes:
    return field(name, b"S", len(value).to_bytes(4) + value)


def number_field(name: str, number: int) -> bytes:
    """A field with a signed integer of 64 bits."""
    return field(name.encode(), b"l", number.to_bytes(8, signed=True))


def number_of(value: bytes) -> int:
    """The number in such a field, from its type byte on. Raises ValueError for any other value."""
    if len(value) != 9 or value[:1] != b"l":
        raise ValueError
    return int.from_bytes(value[1:], signed=True)
