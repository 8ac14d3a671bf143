"""What a message costs in its lane's fair shares, as far as that can be read from it (D5)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from dispatcher.amqp.grouping import field_number, header_key, readable_fields
from dispatcher.amqp.properties import TYPE, split_table, type_property
from dispatcher.amqp.relay import Content
from dispatcher.settings import Chosen

#: A cost is a ratio between messages; one message may hold up its queue for this many of the cheapest.
COST_MAX: Final = 1_000_000_000
_STRINGS: Final = b"Sx"
_DIGITS: Final = re.compile(rb"[0-9]{1,10}")


def pricing(cost: Chosen) -> Callable[[Content], int] | None:
    """How to read the cost of a message; None: all cost the same, or are measured."""
    if cost.name == "bytes":
        return lambda content: max(1, content.size)
    if cost.name == "header":
        return _HeaderCost(cost.value)
    return None


def kind_of(content: Content) -> bytes | None:
    """The `type` property: messages of one type are expected to need about the same work."""
    properties = content.properties
    if not properties[1] & TYPE:  # every message is asked, and few have one
        return None
    return type_property(properties, content.table_end) or None


class _HeaderCost:
    """A whole number from 1 to COST_MAX in a header, or a string that says one; anything else costs 1."""

    def __init__(self, header: str) -> None:
        self._key = header_key(header)

    def __call__(self, content: Content) -> int:
        if self._key not in content.properties:
            return 1
        fields, _, _ = split_table(content.properties)
        for field in readable_fields(fields, content.properties):
            if field.startswith(self._key):
                return self._read(field)
        return 1

    def _read(self, field: bytes) -> int:
        at = len(self._key)
        value = field_number(field, at)
        if field[at] in _STRINGS and _DIGITS.fullmatch(field, at + 5):
            value = int(field[at + 5 :])
        return min(int(value), COST_MAX) if value is not None and 1 <= value < float("inf") else 1
