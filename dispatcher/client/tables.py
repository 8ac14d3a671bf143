"""AMQP field tables and property lists, read and written without loss.

The libraries below this SDK lose or refuse some of it: numbers change their type, doubles become floats,
a timestamp of another unit or a string that isn't UTF-8 ends the connection. Here every legal table is read;
what can't be a Python value comes as its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

#: Tables in tables deeper than this come as bytes: Python's own stack ends at 1,000.
DEPTH_MAX: Final = 100
#: Bytes of each value that has a fixed size, by its type letter.
_SIZES: Final = {
    ord(letter): size
    for letter, size in {
        "t": 1, "b": 1, "B": 1, "s": 2, "U": 2, "u": 2, "I": 4, "i": 4, "f": 4, "l": 8, "L": 8, "d": 8,
        "T": 8, "D": 5, "V": 0,
    }.items()
}  # fmt: skip
#: Types whose value begins with its length.
_COUNTED: Final = frozenset(b"SxAF")
_NUMBERS: Final = {
    ord(letter): struct.Struct(layout)
    for letter, layout in {
        "b": ">b", "B": ">B", "s": ">h", "U": ">h", "u": ">H", "I": ">i", "i": ">I", "l": ">q", "L": ">q",
        "f": ">f", "d": ">d",
    }.items()
}  # fmt: skip
_LENGTH: Final = struct.Struct(">I")
_STRING, _BYTES, _ARRAY, _TABLE = b"SxAF"
_BOOLEAN, _TIMESTAMP, _DECIMAL, _VOID = b"tTDV"
_INT32: Final = range(-(2**31), 2**31)
_INT64: Final = range(-(2**63), 2**63)


def text_or_bytes(raw: bytes) -> str | bytes:
    """The text, or the bytes themselves if they are not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def value_end(raw: bytes, kind: int, start: int) -> int:
    """Where the value of type `kind` that begins at `start` ends. Raises ValueError for an unknown type."""
    size = _SIZES.get(kind)
    if size is not None:
        return start + size
    if kind in _COUNTED:
        return start + 4 + int(_LENGTH.unpack_from(raw, start)[0])
    raise ValueError(f"unknown field type {chr(kind)!r}")


def read_table(raw: bytes, depth: int = 0) -> dict[str | bytes, Any]:
    """The entries of a table, `raw` being what follows its length. Raises ValueError if it is malformed."""
    entries: dict[str | bytes, Any] = {}
    position = 0
    try:
        while position < len(raw):
            name_end = position + 1 + raw[position]
            kind, start = raw[name_end], name_end + 1
            end = value_end(raw, kind, start)
            if end > len(raw):
                raise ValueError("a value ends behind its table")
            entries[text_or_bytes(raw[position + 1 : name_end])] = read_value(raw[start:end], kind, depth)
            position = end
    except (IndexError, struct.error):
        raise ValueError("the table ends in the middle of an entry") from None
    return entries


def _read_array(raw: bytes, depth: int) -> list[Any]:
    values = []
    position = 0
    try:
        while position < len(raw):
            kind = raw[position]
            end = value_end(raw, kind, position + 1)
            if end > len(raw):
                raise ValueError("a value ends behind its array")
            values.append(read_value(raw[position + 1 : end], kind, depth))
            position = end
    except (IndexError, struct.error):
        raise ValueError("the array ends in the middle of a value") from None
    return values


def read_value(raw: bytes, kind: int, depth: int = 0) -> Any:
    """One value of type `kind`, `raw` being exactly its bytes. What can't be read comes as bytes."""
    if number := _NUMBERS.get(kind):
        return number.unpack(raw)[0]
    if kind == _STRING:
        return text_or_bytes(raw[4:])
    if kind in (_TABLE, _ARRAY):
        read = read_table if kind == _TABLE else _read_array
        try:
            return read(raw[4:], depth + 1) if depth < DEPTH_MAX else raw[4:]
        except ValueError:
            return raw[4:]
    if kind == _TIMESTAMP:
        return read_timestamp(raw)
    if kind == _DECIMAL:
        return Decimal(int.from_bytes(raw[1:], signed=True)).scaleb(-raw[0])
    if kind == _BOOLEAN:
        return raw != b"\0"
    return None if kind == _VOID else raw[4:]


def read_timestamp(raw: bytes) -> datetime | int:
    """A time of day in UTC, or the bare number if no calendar has that many seconds."""
    seconds = int.from_bytes(raw)
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return seconds


def write_table(entries: Mapping[str | bytes, Any]) -> bytes:
    """A table with its length. Raises ValueError naming the entry that AMQP has no type for."""
    parts: list[bytes] = []
    for name, value in entries.items():
        raw_name = name.encode() if isinstance(name, str) else bytes(name)
        try:
            parts += (short_string(raw_name), _write_value(value))
        except ValueError as error:
            raise ValueError(f"header {name!r}: {error}") from None
        except RecursionError:
            raise ValueError(f"header {name!r}: is nested too deeply") from None
    return _counted(b"".join(parts))


def _write_value(value: Any) -> bytes:
    match value:
        case bool():
            return b"t\1" if value else b"t\0"
        case str():
            return b"S" + _counted(value.encode())
        case int() if value in _INT32:
            return b"I" + value.to_bytes(4, signed=True)
        case int() if value in _INT64:
            return b"l" + value.to_bytes(8, signed=True)
        case float():
            return b"d" + struct.pack(">d", value)
        case None:
            return b"V"
    return _write_rare_value(value)


def _write_rare_value(value: Any) -> bytes:
    match value:
        case bytes() | bytearray() | memoryview():
            return b"x" + _counted(bytes(value))
        case Mapping():
            return b"F" + write_table(value)
        case list() | tuple():
            return b"A" + _counted(b"".join(map(_write_value, value)))
        case datetime():
            return b"T" + write_timestamp(value)
        case Decimal():
            return b"D" + _write_decimal(value)
    raise ValueError(f"AMQP has no type for {value!r} ({type(value).__name__})")


def _write_decimal(value: Decimal) -> bytes:
    _, _, exponent = value.as_tuple()
    scale = -exponent if isinstance(exponent, int) and exponent < 0 else 0
    if value.is_finite() and scale < 256:
        unscaled = int(value.scaleb(scale))
        if unscaled in _INT32 and Decimal(unscaled).scaleb(-scale) == value:
            return bytes([scale]) + unscaled.to_bytes(4, signed=True)
    raise ValueError(f"{value} does not fit AMQP's decimal (32 bits and a scale up to 255)")


def write_timestamp(value: datetime) -> bytes:
    """Whole seconds since 1970; a time without zone is local time, as everywhere in Python."""
    seconds = int(value.timestamp())
    if seconds < 0:
        raise ValueError("a timestamp must not be before 1970")
    return seconds.to_bytes(8)


def short_string(raw: bytes) -> bytes:
    """A string of at most 255 bytes with its length. Raises ValueError."""
    if len(raw) > 255:
        raise ValueError("must be at most 255 bytes")
    return bytes([len(raw)]) + raw


def _counted(raw: bytes) -> bytes:
    return _LENGTH.pack(len(raw)) + raw
