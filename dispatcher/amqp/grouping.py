"""Which headers mean something in a lane: compiled from its settings, applied to one message's fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from struct import Struct
from typing import Final

from dispatcher.amqp.amqp1 import GROUP_ID, GROUP_SEQUENCE, OTHER_TYPE, SECTION_MARK, carried_fields
from dispatcher.amqp.properties import string_property
from dispatcher.amqp.wire import short_string
from dispatcher.errors import ConfigurationError
from dispatcher.wire.protocol import BROKER_HEADERS, HEADER_PREFIX, HEADER_REPLAY

_STRING, _BYTES, _TABLE, _ARRAY = b"SxFA"
_INTEGERS: Final = {
    kind: Struct(">" + code).unpack_from
    for kind, code in zip(b"bBsuIilL", ("b", "B", "h", "H", "i", "I", "q", "q"), strict=True)
}
_FLOATS: Final = {ord("f"): Struct(">f").unpack_from, ord("d"): Struct(">d").unpack_from}
_REFUSED: Final = {
    ord("t"): "a boolean", ord("f"): "a float", ord("d"): "a double", ord("D"): "a decimal",
    ord("T"): "a timestamp", _TABLE: "a table", _ARRAY: "an array", ord(OTHER_TYPE): "of another type",
}  # fmt: skip
#: Properties that only AMQP 1.0 has, and the fields that they are read from.
_AMQP1_PROPERTIES: Final = {"property:group_id": GROUP_ID, "property:group_sequence": GROUP_SEQUENCE}
_OURS: Final = HEADER_PREFIX.encode()
_NEGATIVE: Final = re.compile(rb"\s*-0*[1-9][0-9]*\s*")
_NUMBER: Final = re.compile(rb"\s*-?[0-9]{1,18}\s*")


class Grouping:
    """The lane's `group_header` list, `sequence_header` and `first_header`.

    Strings and byte arrays are group ids as they are, integers in decimal; empty and void mean no group
    there. The first entry of the list that is present and not empty wins, and so does the first of two
    headers with one name. Application properties of AMQP 1.0 are headers that come last. `prefix` begins the
    names of exchanges to which only dispatchers and operators may write; None: there are none.
    """

    __slots__ = (
        "_match_forged", "_match_not_relayed", "_own_exchanges", "_sequence_key", "_sources",
        "reads_numbers", "search_suspect",
    )  # fmt: skip

    def __init__(
        self,
        group_header: Sequence[str],
        sequence_header: str | None,
        first_header: str | None = None,
        *,
        reads_numbers: bool = False,
        prefix: str | None = None,
    ) -> None:
        self.reads_numbers = reads_numbers  # whether a message's place in its group is wanted
        self._sources = [(_key(name), name) for name in group_header]
        self._sequence_key = None
        if sequence_header is not None:
            self._sequence_key = header_key(_AMQP1_PROPERTIES.get(sequence_header, sequence_header))
        # Only the first message of a group may carry the first header, so a producer's own goes too.
        names = [name for name in (*BROKER_HEADERS, first_header) if name is not None]
        exact = b"|".join(re.escape(header_key(name)) for name in names)
        ours = b"." + re.escape(_OURS)
        self._match_forged = re.compile(ours + b"|" + exact, re.DOTALL).match
        replay = b"(?!" + re.escape(header_key(HEADER_REPLAY)) + b")"
        self._match_not_relayed = re.compile(replay + ours + b"|" + exact, re.DOTALL).match
        self._own_exchanges = None if prefix is None else f"{prefix}.".encode()
        #: Whether such a name, or a section of AMQP 1.0, may be anywhere in the bytes; nearly always it is
        #: not. Without the names' lengths: all begin with x-, and the search is three times as fast.
        suspects = [SECTION_MARK, *(name.encode() for name in (HEADER_PREFIX, *names))]
        self.search_suspect = re.compile(b"|".join(re.escape(suspect) for suspect in suspects)).search

    def trusts(self, exchange: bytes) -> bool:
        """Whether what came through that exchange may say where it was before."""
        return self._own_exchanges is not None and exchange.startswith(self._own_exchanges)

    def is_relayed(self, field: bytes, exchange: bytes) -> bool:
        """Whether copies have this field of a message that came through that exchange. That it is a replay
        is relayed, if an operator says it."""
        match = self._match_not_relayed if self.trusts(exchange) else self._match_forged
        return match(field) is None

    def find(
        self, fields: list[bytes], properties: bytes, table_end: int, routing_key: bytes
    ) -> tuple[bytes | None, str | None]:
        """The group (None: it has none) and why it can't be used (None: it can).

        `fields` are those of `readable_fields`, `table_end` is what `split_table` said. Raises
        ProtocolViolation when a property list that has to be read is malformed.
        """
        for key, name in self._sources:
            if key is None:
                if name == "routing_key":
                    group = routing_key
                else:
                    group = string_property(properties, table_end, name.removeprefix("property:"))
                if group:
                    return group, None
                continue
            for field in fields:
                if field.startswith(key):
                    at = len(key)
                    if field[at] == _STRING and len(field) > at + 5:
                        return field[at + 5 :], None
                    found, refusal = _read_group(field, at, name)
                    if found or refusal:
                        return found, refusal
                    break
        return None, None

    def closes(self, fields: list[bytes]) -> bool:
        """Whether the sequence header is a negative number: this message is the last of its group.

        An integer, float or double below zero, or a string that says a negative integer (bridges from
        other protocols send strings). Anything else means nothing.
        """
        key = self._sequence_key
        if key is None:
            return False
        for field in fields:
            if field.startswith(key):
                at = len(key)
                kind = field[at]
                if kind in (_STRING, _BYTES):
                    return _NEGATIVE.fullmatch(field, at + 5) is not None
                number = field_number(field, at)
                return number is not None and number < 0
        return False

    def number(self, fields: list[bytes]) -> int | None:
        """The number in the sequence header, with its sign; None: there is none, or the lane does not ask for
        it.

        A whole number, or a string of at most 18 digits that says one. Anything else is no number.
        """
        key = self._sequence_key
        if not self.reads_numbers or key is None:
            return None
        for field in fields:
            if field.startswith(key):
                at = len(key)
                if field[at] in (_STRING, _BYTES):
                    text = _NUMBER.fullmatch(field, at + 5)
                    return int(text[0]) if text is not None else None
                read = _INTEGERS.get(field[at])
                return read(field, at + 1)[0] if read is not None else None
        return None


def readable_fields(fields: list[bytes], properties: bytes) -> list[bytes]:
    """The fields of the header table, and what the sections of an AMQP 1.0 message say besides."""
    return [*fields, *carried_fields(fields)] if SECTION_MARK in properties else fields


def field_number(field: bytes, at: int) -> int | float | None:
    """The number in a field whose type byte is at `at`; None if it is of another type."""
    read = _INTEGERS.get(field[at]) or _FLOATS.get(field[at])
    return read(field, at + 1)[0] if read is not None else None


def _read_group(field: bytes, at: int, name: str) -> tuple[bytes | None, str | None]:
    """The group in a field whose type byte is at `at`, when it is not simply a string."""
    kind = field[at]
    if kind in _INTEGERS:
        return str(_INTEGERS[kind](field, at + 1)[0]).encode(), None
    if kind in _REFUSED:
        return None, f"its group header {name} is {_REFUSED[kind]}, not a string or integer"
    return field[at + 5 :], None  # a byte array, an empty string or a void


def _key(source: str) -> bytes | None:
    if source in _AMQP1_PROPERTIES:
        return header_key(_AMQP1_PROPERTIES[source])
    if source == "routing_key" or source.startswith("property:"):
        return None
    return header_key(source)


def header_key(name: str) -> bytes:
    """How a field of that header begins. Raises ConfigurationError."""
    try:
        return short_string(name)
    except ValueError as problem:
        raise ConfigurationError(f"header {problem}") from None
