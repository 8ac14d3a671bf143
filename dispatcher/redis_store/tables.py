"""Rows of the lane's small tables as Redis keeps them, and the packed form in which commits carry changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from struct import Struct
from typing import Any, Final, get_type_hints

from dispatcher.core.effects import Effects, IdRange, WindowChange
from dispatcher.core.tables import IncarnationRow, OwnerRow
from dispatcher.errors import ConfigurationError
from dispatcher.redis_store.fields import of_another_version
from dispatcher.wire.bundle import BundleLimits

#: Raised with every change of an owner row's layout.
OWNER_VERSION: Final = 1
_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode
_OWNER = Struct("!BQQ")
#: The same without the version.
_OWNER_FIELDS = Struct("!xQQ")
_LENGTH = Struct("!I")
_ID_RANGE = Struct("!QI")
#: Arguments of a commit that are of tables.
TABLES: Final = 9
#: Fields that few consumers have, and that are left out then.
_OPTIONAL: Final = ("user", "bundle")
_INCARNATION_TYPES: Final = {
    name: kind for name, kind in get_type_hints(IncarnationRow).items() if name not in _OPTIONAL
}
_pack_owner = _OWNER.pack
_pack_length = _LENGTH.pack
_OWNER_LENGTH = _LENGTH.pack(_OWNER.size)
_OWNER_BEGIN: Final = bytes([OWNER_VERSION])
#: A new leader reads a row for each group: without a call of a Python function that takes half the time.
_to_owner: Final = partial(tuple.__new__, OwnerRow)


def packed(fields: Iterable[bytes]) -> bytes:
    """Fields one after the other, each behind its length: one argument of a script for any number."""
    return b"".join([_pack_length(len(field)) + field for field in fields])


def packed_owners(rows: Iterable[tuple[bytes, OwnerRow]]) -> bytes:
    return b"".join(
        [
            _pack_length(len(group)) + group + _OWNER_LENGTH + _pack_owner(OWNER_VERSION, *row)
            for group, row in rows
        ]
    )


def packed_incarnations(rows: Iterable[tuple[int, IncarnationRow]]) -> bytes:
    return packed(field for number, row in rows for field in (b"%d" % number, to_json(_fields(row))))


def _fields(row: IncarnationRow) -> dict[str, Any]:
    fields = row._asdict()
    for name in _OPTIONAL:
        if fields[name] is None:
            del fields[name]
    return fields


def packed_sequences(rows: Iterable[tuple[bytes, int]]) -> bytes:
    return packed(field for group, last in rows for field in (group, b"%d" % last))


def changes(effects: Effects) -> tuple[bytes, ...]:
    """The table arguments of a commit, in its script's order; none if no table changes."""
    owners, incarnations, flags = effects.owners, effects.incarnations, effects.operator_rows
    sequences = effects.sequences
    if not (owners or incarnations or effects.commands or flags or sequences):
        return () if effects.window is None else (*[b""] * TABLES, *window_change(effects.window))
    rows = (
        packed_owners((group, row) for group, row in owners.items() if row is not None),
        packed(group for group, row in owners.items() if row is None),
        packed_incarnations((number, row) for number, row in incarnations.items() if row is not None),
        packed(b"%d" % number for number, row in incarnations.items() if row is None),
        packed(field for item in effects.commands.items() for field in (to_bytes(item[0]), to_json(item[1]))),
        packed(field for key, row in flags.items() if row is not None for field in (key, to_json(row))),
        packed(key for key, row in flags.items() if row is None),
        packed_sequences((group, last) for group, last in sequences.items() if last is not None),
        packed(group for group, last in sequences.items() if last is None),
    )
    return rows if effects.window is None else (*rows, *window_change(effects.window))


def window_change(change: WindowChange) -> tuple[bytes, ...]:
    """The arguments of a commit that changes the window of ids, or asks for some."""
    asked = change.lookup.ids if change.lookup is not None else ()
    return (
        _packed_ids(change.entered), _packed_ids(change.doubted),
        b"".join([part for question in asked for part in question]),
        b"%d" % change.now_ms, b"%d" % change.window_ms, b"%d" % change.ids_max,
    )  # fmt: skip


def _packed_ids(ranges: list[IdRange]) -> bytes:
    return b"".join([_ID_RANGE.pack(at_ms, len(ids)) + ids for at_ms, ids in ranges])


def to_bytes(text: str) -> bytes:
    """Any text that JSON can hold, lone surrogates too."""
    return text.encode(errors="surrogatepass")


def to_text(value: bytes, origin: str) -> str:
    """Raises ConfigurationError, beginning with `origin`."""
    try:
        return value.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        raise _foreign(origin) from None


def read_owners(fields: list[bytes], origin: Callable[[bytes], str]) -> Iterable[tuple[bytes, OwnerRow]]:
    """The rows of groups and values that follow each other.

    Raises ConfigurationError, beginning with the group's `origin`.
    """
    groups, values = fields[::2], fields[1::2]
    together = b"".join(values)
    if not {_OWNER.size}.issuperset(map(len, values)) or together[:: _OWNER.size].strip(_OWNER_BEGIN):
        group, value = next(each for each in zip(groups, values, strict=True) if not _is_owner(each[1]))
        raise _foreign_owner(value, origin(group))
    return zip(groups, map(_to_owner, _OWNER_FIELDS.iter_unpack(together)), strict=True)


def _is_owner(value: bytes) -> bool:
    return len(value) == _OWNER.size and value.startswith(_OWNER_BEGIN)


def _foreign_owner(value: bytes, origin: str) -> ConfigurationError:
    if value and value[0] != OWNER_VERSION:
        return of_another_version(origin, "was written in format", value[0], OWNER_VERSION)
    return _foreign(origin)


def read_incarnation(value: bytes, origin: str) -> IncarnationRow:
    """Unknown fields are ignored. Raises ConfigurationError, beginning with `origin`."""
    fields = read_json(value, origin)
    for name, kind in _INCARNATION_TYPES.items():
        if type(fields.get(name)) is not kind:
            raise _foreign(origin)
    user = fields.get("user")
    if user is not None and not isinstance(user, str):
        raise _foreign(origin)
    kept = {name: fields[name] for name in _INCARNATION_TYPES}
    return IncarnationRow(**kept, user=user, bundle=_bundle(fields.get("bundle"), origin))


def _bundle(limits: Any, origin: str) -> BundleLimits | None:
    if limits is None:
        return None
    if not isinstance(limits, list) or [type(limit) for limit in limits] != [int, int]:
        raise _foreign(origin)
    return BundleLimits(*limits)


def read_number(value: bytes, origin: str) -> int:
    """Raises ConfigurationError, beginning with `origin`."""
    if not value.isdigit() or len(value) > 20:
        raise _foreign(origin)
    return int(value)


def read_json(value: bytes, origin: str) -> dict[str, Any]:
    """Raises ConfigurationError, beginning with `origin`."""
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError):
        raise _foreign(origin) from None
    if not isinstance(fields, dict):
        raise _foreign(origin)
    return fields


def read_names(value: bytes, origin: str) -> list[str]:
    """Raises ConfigurationError, beginning with `origin`."""
    try:
        names = json.loads(value)
    except (ValueError, RecursionError):
        raise _foreign(origin) from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _foreign(origin)
    return names


def _foreign(origin: str) -> ConfigurationError:
    return ConfigurationError(f"{origin}: can't be read; something else wrote it, delete the lane's keys")


def to_json(value: dict[str, Any] | list[str]) -> bytes:
    return _to_json(value).encode()
