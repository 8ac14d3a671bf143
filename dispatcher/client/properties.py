"""The properties of a message, as they are on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dispatcher.client import tables

#: In the order of the wire: bit 15 of the flags is the first, bit 2 the last.
_NAMES: Final = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """A message's AMQP properties without its headers; None: absent.

    Strings that are not UTF-8 come as bytes; a timestamp beyond the calendar comes as its number.
    """

    content_type: str | bytes | None = None
    content_encoding: str | bytes | None = None
    delivery_mode: int | None = None  # of a received message: its copy's, always 1
    priority: int | None = None
    correlation_id: str | bytes | None = None
    reply_to: str | bytes | None = None
    expiration: str | bytes | None = None  # of a received message: absent, it became its deadline
    message_id: str | bytes | None = None
    timestamp: datetime | int | None = None
    type: str | bytes | None = None
    user_id: str | bytes | None = None
    app_id: str | bytes | None = None
    cluster_id: str | bytes | None = None


def split(raw: bytes) -> tuple[dict[str, bytes], bytes]:
    """The bytes of each property that is there (strings and table without their length), and of the headers.

    `raw` is flags and property list as in a content header. Raises ValueError if it is malformed.
    """
    found: dict[str, bytes] = {}
    table = b""
    flags = int.from_bytes(raw[:2])
    position = 2
    if len(raw) < 2 or flags & 1:
        raise ValueError("the property flags are not those of a message")
    for index, name in enumerate(_NAMES):
        if not flags & 0x8000 >> index:
            continue
        start, end = _extent(raw, name, position)
        if end > len(raw):
            raise ValueError(f"the property list ends in the middle of {name}")
        if name == "headers":
            table = raw[start:end]
        else:
            found[name] = raw[start:end]
        position = end
    return found, table


def _extent(raw: bytes, name: str, position: int) -> tuple[int, int]:
    match name:
        case "headers":
            return position + 4, position + 4 + int.from_bytes(raw[position : position + 4])
        case "delivery_mode" | "priority":
            return position, position + 1
        case "timestamp":
            return position, position + 8
        case _:
            return position + 1, position + 1 + int.from_bytes(raw[position : position + 1])


def read(raw: bytes) -> tuple[Properties, dict[str | bytes, Any]]:
    """Properties and headers. Raises ValueError if the list or the headers' outermost table is malformed."""
    found, table = split(raw)
    values: dict[str, Any] = {}
    for name, value in found.items():
        match name:
            case "delivery_mode" | "priority":
                values[name] = value[0]
            case "timestamp":
                values[name] = tables.read_timestamp(value)
            case _:
                values[name] = tables.text_or_bytes(value)
    return Properties(**values), tables.read_table(table)


def write(properties: Properties, headers: Mapping[str | bytes, Any]) -> bytes:
    """Flags and property list. Raises ValueError naming the property or header that can't be written."""
    flags = 0
    parts = []
    for index, name in enumerate(_NAMES):
        value = headers or None if name == "headers" else getattr(properties, name)
        if value is None:
            continue
        flags |= 0x8000 >> index
        try:
            parts.append(_written(name, value))
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(str(error) if name == "headers" else f"property {name}: {error}") from None
    return flags.to_bytes(2) + b"".join(parts)


def _written(name: str, value: Any) -> bytes:
    match name:
        case "headers":
            return tables.write_table(value)
        case "delivery_mode" | "priority":
            return int(value).to_bytes(1)
        case "timestamp":
            return tables.write_timestamp(value) if isinstance(value, datetime) else int(value).to_bytes(8)
        case _:
            return tables.short_string(value if isinstance(value, bytes) else str(value).encode())
