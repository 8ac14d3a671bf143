"""What RabbitMQ's AMQP 1.0 plugin (up to 3.12) passes on of a message's sections, as header fields.

It puts the sections `properties` and `application-properties`, encoded as they came, into one header each.
Here they become fields that the lane's grouping reads like any other; the relayed copy stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dispatcher.amqp.properties import field, string_field

#: In a property list without it there is nothing to translate.
SECTION_MARK: Final = b"x-amqp-1.0-"
_PROPERTIES: Final = b"\x15x-amqp-1.0-propertiesS"
_APPLICATION: Final = b"\x19x-amqp-1.0-app-propertiesS"
#: No header is called so: a producer of AMQP 0-9-1 can't stand in for these properties.
GROUP_ID: Final = "\0group-id"
GROUP_SEQUENCE: Final = "\0group-sequence"
_GROUP_ID_AT, _GROUP_SEQUENCE_AT = 10, 11
_BYTES_MAX: Final = 255  # of a header's name

_DESCRIBED: Final = 0x00
_NULL, _TRUE, _FALSE, _UINT_0, _ULONG_0 = 0x40, 0x41, 0x42, 0x43, 0x44
_UNSIGNED: Final = frozenset((0x50, 0x52, 0x53, 0x60, 0x70, 0x80, _UINT_0, _ULONG_0))
_SIGNED: Final = frozenset((0x51, 0x54, 0x55, 0x61, 0x71, 0x81))
_TEXTS: Final = frozenset((0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3))  # binary, string, symbol
#: Types that the header table of AMQP 0-9-1 has as well.
_SAME: Final = {0x72: b"f", 0x82: b"d", 0x83: b"T", 0x56: b"t", _NULL: b"V"}
#: A type byte for all that can't name a group (uuid, char, lists …).
OTHER_TYPE: Final = b"\0"


def carried_fields(fields: list[bytes]) -> list[bytes]:
    """The application properties by their names, then GROUP_ID and GROUP_SEQUENCE, where they are.

    Whole numbers become decimal strings, which mean the same (O-1). A group-sequence is an unsigned
    number of 32 bits: a number that is negative for a JMS client comes as 2^31 and more. A section that can't
    be read says nothing.
    """
    found: list[bytes] = []
    for carried in fields:
        try:
            if carried.startswith(_APPLICATION):
                found += _application(carried[len(_APPLICATION) + 4 :])
            elif carried.startswith(_PROPERTIES):
                found += _group(carried[len(_PROPERTIES) + 4 :])
        except (IndexError, KeyError, RecursionError):
            continue  # others can't read it either
    return found


def _application(section: bytes) -> list[bytes]:
    values = list(_compound(section))
    pairs = zip(values[::2], values[1::2], strict=False)
    return [
        _as_field(name, value)
        for (kind, name), value in pairs
        if kind in _TEXTS and 0 < len(name) <= _BYTES_MAX
    ]


def _group(section: bytes) -> list[bytes]:
    values = list(_compound(section))[_GROUP_ID_AT : _GROUP_SEQUENCE_AT + 1]
    found = []
    if values and values[0][0] in _TEXTS:
        found.append(string_field(GROUP_ID.encode(), values[0][1]))
    if len(values) == 2 and values[1][0] in _UNSIGNED:
        number = int.from_bytes(values[1][1])
        signed = number - (1 << 32) if number >= 1 << 31 else number
        found.append(string_field(GROUP_SEQUENCE.encode(), b"%d" % signed))
    return found


def _as_field(name: bytes, value: tuple[int, bytes]) -> bytes:
    kind, content = value
    if kind in _TEXTS:
        return string_field(name, content)
    if kind in _UNSIGNED or kind in _SIGNED:
        return string_field(name, b"%d" % int.from_bytes(content, signed=kind in _SIGNED))
    if kind in (_TRUE, _FALSE):
        return field(name, b"t", bytes((kind == _TRUE,)))
    return field(name, _SAME.get(kind, OTHER_TYPE), content)


def _compound(section: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and content of each value in a described list or map.

    Raises IndexError or KeyError when it is cut short or wrong.
    """
    if section[0] != _DESCRIBED:
        return
    _, _, at = _value(section, 1)  # its descriptor: the header's name said already which section it is
    kind, content, _ = _value(section, at)
    width = {0xC0: 1, 0xC1: 1, 0xD0: 4, 0xD1: 4}.get(kind)
    if width is None:  # the empty list
        return
    at = width  # behind the count
    while at < len(content):
        kind, value, at = _value(content, at)
        yield kind, value


def _value(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Type, content without lengths, and where the next value begins. Raises IndexError, KeyError."""
    kind = data[at]
    at += 1
    if kind == _DESCRIBED:
        _, _, at = _value(data, at)
        _, content, at = _value(data, at)
        return _DESCRIBED, content, at
    if kind >= 0xA0:
        width = 4 if kind & 0x10 else 1
        size = int.from_bytes(data[at : at + width])
        at += width
    else:
        size = _FIXED[kind >> 4]
    end = at + size
    if end > len(data):
        raise IndexError
    return kind, data[at:end], end


#: Bytes of a value without a length of its own, by the upper half of its type; the rest doesn't exist.
_FIXED: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
