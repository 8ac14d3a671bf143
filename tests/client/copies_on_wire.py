"""Property lists of copies and notices, byte for byte as a dispatcher sends them."""

from __future__ import annotations

import json
from typing import Any

from dispatcher.client import properties as amqp_properties
from dispatcher.client.properties import Properties
from dispatcher.wire import protocol


def string_entry(name: str, value: bytes) -> bytes:
    """A header whose value is a long string of exactly these bytes."""
    return bytes([len(name)]) + name.encode() + b"S" + len(value).to_bytes(4) + value


def integer_entry(name: str, value: int) -> bytes:
    return bytes([len(name)]) + name.encode() + b"l" + value.to_bytes(8, signed=True)


def only_headers(table: bytes) -> bytes:
    """Flags and property list of a message that has nothing but these headers."""
    return (1 << 13).to_bytes(2) + len(table).to_bytes(4) + table


def copy_properties(
    seq: int,
    group: bytes | None = None,
    *,
    group_seq: int = 0,
    epoch: int = 0,
    attempt: int = 1,
    deadline_at_ms: int | None = None,
    table: bytes = b"",
) -> bytes:
    """A copy's properties: the producer's headers (`table`), then the dispatcher's."""
    if group is not None:
        table += string_entry(protocol.HEADER_GROUP, group)
    table += integer_entry(protocol.HEADER_SEQ, seq)
    if group_seq:
        table += integer_entry(protocol.HEADER_GROUP_SEQ, group_seq)
        table += integer_entry(protocol.HEADER_EPOCH, epoch)
    table += integer_entry(protocol.HEADER_ATTEMPT, attempt)
    table += string_entry(protocol.HEADER_ID, f"{seq:032x}".encode())
    if deadline_at_ms is not None:
        table += integer_entry(protocol.HEADER_DEADLINE, deadline_at_ms)
    return only_headers(table)


def notice_properties(kind: str, **body: Any) -> tuple[bytes, bytes]:
    """Properties and body of a `dispatch.<kind>`."""
    raw = amqp_properties.write(Properties(type=f"dispatch.{kind}"), {})
    return raw, json.dumps(body).encode()
