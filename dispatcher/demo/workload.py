"""What the demo replays: changes of rows in a table, and the table that they must lead to."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_from_bytes

from dispatcher.judge.record import UNGROUPED, MessageKey


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row changes. It may only be applied when the row holds `old`; b"" stands for no row."""

    group: bytes
    key: bytes  # the row
    old: bytes
    new: bytes


@dataclass(frozen=True, slots=True)
class Workload:
    """Changes in the order of their messages, and the rows after the last one."""

    title: str
    source: str  # what the final table is compared with, for people
    changes: Sequence[RowChange]
    expected: dict[bytes, bytes]


def replayed(changes: Sequence[RowChange]) -> dict[bytes, bytes]:
    """The rows after a plain sequential replay. Raises ValueError when the changes contradict themselves."""
    rows: dict[bytes, bytes] = {}
    for number, change in enumerate(changes):
        if rows.get(change.key, b"") != change.old:
            raise ValueError(f"change {number} of row {change.key!r} does not follow from the one before it")
        if change.new:
            rows[change.key] = change.new
        else:
            rows.pop(change.key, None)
    return rows


def repeated(changes: Sequence[RowChange], minimum: int) -> tuple[list[RowChange], int]:
    """At least `minimum` changes that lead to the same rows: between two repetitions every row is deleted.

    Returns them, and how often they are repeated.
    """
    rows = replayed(changes)
    groups = {change.key: change.group for change in changes}
    clearing = [RowChange(groups[key], key, value, b"") for key, value in rows.items()]
    result = list(changes)
    times = 1
    while len(result) < minimum:
        result += clearing
        result += changes
        times += 1
    return result, times


# --- on the wire ---------------------------------------------------------------------------------------

#: Nothing of a key or value gets lost: what isn't UTF-8 travels as lone surrogates, which JSON escapes.
_LOSSLESS: Final = "surrogateescape"


def encode(number: int, change: RowChange) -> bytes:
    """The message body of change `number`."""
    fields: dict[str, Any] = {"number": number, "key": change.key.decode(errors=_LOSSLESS)}
    if change.old:
        fields["old"] = change.old.decode(errors=_LOSSLESS)
    if change.new:
        fields["new"] = change.new.decode(errors=_LOSSLESS)
    return json.dumps(fields).encode()


def decode(group: bytes | None, body: bytes) -> tuple[int, RowChange]:
    """What `encode` was given."""
    fields = json.loads(body)
    key, old, new = (fields.get(name, "").encode(errors=_LOSSLESS) for name in ("key", "old", "new"))
    return int(fields["number"]), RowChange(group or b"", key, old, new)


def message_key(number: int, group: bytes) -> MessageKey:
    """How records name change `number`. A group goes to one inbound queue, so they need not name that."""
    text = quote_from_bytes(group, safe="/") or UNGROUPED
    return MessageKey("-", "%2D" if group == UNGROUPED.encode() else text, 0, number)


def inbound_index(group: bytes, queues: int) -> int:
    """Which inbound queue a group goes to: always the same, by a stable hash."""
    return zlib.crc32(group) % queues
