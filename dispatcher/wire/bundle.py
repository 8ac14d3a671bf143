"""Bundles: one AMQP message that carries several copies (docs/protocol.md, "Bundles").

The body of a bundle is its copies one after the other. Each is two fields: the property list, which is flags
and properties as in a content header, and the body. A field is its length, 4 bytes with the highest first,
and then its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, NamedTuple

from dispatcher.errors import ProtocolViolation
from dispatcher.wire.json_fields import integer

#: Copies in one bundle, at most: more would save the broker nothing (one frame in 1,000 is nearly none).
MESSAGES_MAX: Final = 1_000
#: Bytes of one bundle's body, at most: far below what every RabbitMQ takes for one message.
BYTES_MAX: Final = 1_048_576
_LENGTH: Final = Struct(">I")
_FIELD_HEAD_BYTES: Final = 4
#: What a copy takes in a bundle beside its property list and its body.
HEAD_BYTES: Final = 2 * _FIELD_HEAD_BYTES
pack_length: Final = _LENGTH.pack


class BundleLimits(NamedTuple):
    """What a consumer takes as one AMQP message, at most."""

    messages: int
    bytes: int  # of the bundle's body


def read_limits(fields: dict[str, Any]) -> BundleLimits | None:
    """The `bundle` of a join, None without one. Raises ProtocolViolation."""
    if "bundle" not in fields:
        return None
    limits = fields["bundle"]
    if not isinstance(limits, dict):
        raise ProtocolViolation("bundle: must be an object with messages and bytes")
    return BundleLimits(integer(limits, "messages", 1, MESSAGES_MAX), integer(limits, "bytes", 1, BYTES_MAX))


def write_bundle(copies: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The body of a bundle: of each copy property list and body."""
    parts: list[bytes] = []
    for properties, body in copies:
        parts += (pack_length(len(properties)), properties, pack_length(len(body)), body)
    return b"".join(parts)


def split_bundle(bundle: bytes) -> list[tuple[bytes, bytes]]:
    """Property list and body of each copy, in their order. Raises ValueError when the lengths don't add up:
    then no copy of it is known."""
    copies: list[tuple[bytes, bytes]] = []
    at, end = 0, len(bundle)
    try:
        while at < end:
            body_head = at + _FIELD_HEAD_BYTES + _LENGTH.unpack_from(bundle, at)[0]
            body_at = body_head + _FIELD_HEAD_BYTES
            after = body_at + _LENGTH.unpack_from(bundle, body_head)[0]
            if after > end:
                raise ValueError(f"a bundle of {end} bytes ends within copy {len(copies) + 1}")
            copies.append((bundle[at + _FIELD_HEAD_BYTES : body_head], bundle[body_at:after]))
            at = after
    except struct_error:
        raise ValueError(f"a bundle of {end} bytes ends within copy {len(copies) + 1}") from None
    return copies
