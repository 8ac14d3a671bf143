"""Fields of a JSON object from another program: of the right kind and size, or a ProtocolViolation."""

from __future__ import annotations

import json
from typing import Any, Final

from dispatcher.errors import ProtocolViolation

#: A control message says where it wants its answers; a longer name than AMQP's short string can't be a queue.
SHORT_STRING_BYTES_MAX: Final = 255


def json_object(body: bytes) -> dict[str, Any]:
    """The object that is the whole body."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise ProtocolViolation("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise ProtocolViolation("the body is not a JSON object")
    return fields


def text(fields: dict[str, Any], key: str) -> str:
    """A short string, which the broker may have a thing of the name of."""
    value = fields.get(key)
    if not isinstance(value, str) or not is_short_string(value):
        raise ProtocolViolation(f"{key}: must be a string of 1 to {SHORT_STRING_BYTES_MAX} bytes")
    return value


def is_short_string(value: str) -> bool:
    """Whether it may be the name of a thing of the broker's, or the id of a message."""
    try:  # JSON ("\\ud800") and command lines can have half a character, which nothing else can
        return 0 < len(value.encode()) <= SHORT_STRING_BYTES_MAX
    except UnicodeEncodeError:
        return False


def is_integer(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def integer(fields: dict[str, Any], key: str, low: int, high: int) -> int:
    value = fields.get(key)
    if not is_integer(value, low, high):
        raise ProtocolViolation(f"{key}: must be an integer from {low} to {high}")
    assert isinstance(value, int)
    return value


def items(fields: dict[str, Any], key: str, length_max: int) -> list[Any]:
    """A list, empty when it is absent."""
    value = fields.get(key, [])
    if not isinstance(value, list) or len(value) > length_max:
        raise ProtocolViolation(f"{key}: must be a list of at most {length_max}")
    return value
