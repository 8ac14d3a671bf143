"""The journal's bytes: records of a commit in, one blob out, and back.

A blob is one version byte and then records, each a kind byte and fixed fields in network order:

    Reset           -
    Entry           inbound u16, arrival u64 u64, fingerprint 16, incarnation u64, seq u64, group_seq u64,
                    epoch u64, attempt u32, first u8, group
    SettledRange    incarnation u64, first u64, last u64
    Ended           inbound u16, arrival u64 u64, fingerprint 16, attempt u32, calls u32, group, reason
    Buried          inbound u16, arrival u64 u64
    Vanished        inbound u16, arrival u64 u64
    Taken           incarnation u64
    SettledEntries  inbound u16, proven u8, count u32, then count times arrival u64 u64, fingerprint 16
    Proven          inbound u16, count u64
    Used            incarnation u64, highest u64

`group` is a u32 length and that many bytes, or the length NO_GROUP; `reason` a u32 length and UTF-8.
Records of parking are in parking_codec.py.

Inbound queues are written by their number in the lane's stored table (inbounds.py), never by position.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Any, Final, cast

from dispatcher.core.records import (
    DeadLetterPending,
    Discharged,
    Dispatched,
    IncarnationEnded,
    JournalReset,
    NumbersUsed,
    OpenEntry,
    ProvenAcks,
    Record,
    SettledEntries,
    SettledRange,
    Vanished,
)
from dispatcher.errors import ConfigurationError, InvalidTransition
from dispatcher.redis_store.fields import (
    LENGTH,
    NO_GROUP,
    Damaged,
    checked,
    group_length,
    of_another_version,
    read_bytes,
    read_group,
)
from dispatcher.redis_store.parking_codec import PARKING_READERS, encode_parking

#: Raised when a record above changes; a journal in another format is refused. A new kind of record does not
#: raise it: a version that does not know the kind refuses the record.
VERSION: Final = 2

_RESET, _ENTRY, _RANGE, _ENDED, _BURIED, _VANISHED, _TAKEN, _SETTLED, _PROVEN, _USED = range(1, 11)
_ENTRY_FIELDS = Struct("!BHQQ16sQQQQIBI")
_RANGE_FIELDS = Struct("!BQQQ")
_ENDED_FIELDS = Struct("!BHQQ16sIII")
_POSITION_FIELDS = Struct("!BHQQ")
_TAKEN_FIELDS = Struct("!BQ")
_SETTLED_FIELDS = Struct("!BHBI")
_ARRIVAL_FIELDS = Struct("!QQ16s")
_PROVEN_FIELDS = Struct("!BHQ")
_USED_FIELDS = Struct("!BQQ")
_pack_entry = _ENTRY_FIELDS.pack
_pack_range = _RANGE_FIELDS.pack
_pack_arrival = _ARRIVAL_FIELDS.pack


def encode(records: Iterable[Record], stored: Sequence[int]) -> bytes:
    """The blob for these records; `stored[i]` is the stored number of the caller's inbound queue i.

    A `Dispatched` is written as the `OpenEntry` that its reader will see.
    """
    parts = [bytes((VERSION,))]
    for record in records:
        if type(record) is Dispatched:  # first and inline: nearly all records are these and the ranges
            message = record.message
            # As the objects that they are: they are packed, not computed with.
            _, incarnation, _, seq, group_seq, epoch, attempt, first = cast("tuple[Any, ...]", record)
            lane_epoch, tag = message.arrival
            group = message.group_id
            entry = _pack_entry(
                _ENTRY, stored[message.queue], lane_epoch, tag, message.fingerprint, incarnation,
                seq, group_seq, epoch, attempt, first, NO_GROUP if group is None else len(group),
            )  # fmt: skip
            parts.append(entry)
            if group:
                parts.append(group)
        elif type(record) is SettledRange:
            parts.append(_pack_range(_RANGE, *record))
        else:
            parts.append(encode_parking(record, stored) or _encode_rare(record, stored))
    return b"".join(parts)


def _encode_rare(record: Record, stored: Sequence[int]) -> bytes:
    match record:
        case OpenEntry():
            return _ENTRY_FIELDS.pack(
                _ENTRY, stored[record.inbound], *record.arrival, checked(record.fingerprint),
                record.incarnation, record.seq, record.group_seq, record.epoch, record.attempt, record.first,
                group_length(record.group),
            ) + (record.group or b"")  # fmt: skip
        case DeadLetterPending():
            reason = record.reason.encode(errors="surrogatepass")  # any text that a consumer's JSON can hold
            fixed = _ENDED_FIELDS.pack(
                _ENDED, stored[record.inbound], *record.arrival, checked(record.fingerprint), record.attempt,
                record.calls, group_length(record.group),
            )  # fmt: skip
            return b"".join((fixed, record.group or b"", LENGTH.pack(len(reason)), reason))
        case SettledEntries():
            fixed = _SETTLED_FIELDS.pack(_SETTLED, stored[record.inbound], record.proven, len(record.entries))
            # Of 40,000 in one checkpoint; nothing else is done meanwhile.
            packed = [_pack_arrival(epoch, tag, fingerprint) for (epoch, tag), fingerprint in record.entries]
            return fixed + b"".join(packed)
        case Discharged():
            return _POSITION_FIELDS.pack(_BURIED, stored[record.inbound], *record.arrival)
        case Vanished():
            return _POSITION_FIELDS.pack(_VANISHED, stored[record.inbound], *record.arrival)
        case IncarnationEnded():
            return _TAKEN_FIELDS.pack(_TAKEN, record.incarnation)
        case NumbersUsed():
            return _USED_FIELDS.pack(_USED, *record)
        case ProvenAcks():
            return _PROVEN_FIELDS.pack(_PROVEN, stored[record.inbound], record.count)
        case JournalReset():
            return bytes((_RESET,))
    raise InvalidTransition(f"the journal has no form for {record!r}")


def decode(blob: bytes, origin: str) -> list[Record]:
    """The records of a blob, with stored inbound numbers; a `Dispatched` is decoded as an `OpenEntry`.

    `origin` names the blob in errors. Raises ConfigurationError for bytes that another version wrote, or
    that are no journal.
    """
    if not blob:
        raise ConfigurationError(f"{origin}: is empty, so something else wrote it; delete the lane's keys")
    if blob[0] != VERSION:
        raise of_another_version(origin, "was written in format", blob[0], VERSION)
    records: list[Record] = []
    at, end = 1, len(blob)
    try:
        while at < end:
            reader = _READERS.get(blob[at])
            if reader is None and blob[at] > _LATEST_KIND:
                raise of_another_version(origin, "has a record of kind", blob[at], _LATEST_KIND)
            if reader is None:
                raise Damaged(f"unknown record kind {blob[at]} at byte {at}")
            record, at = reader(blob, at)
            records.append(record)
    except (Damaged, struct.error, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{origin}: can't be read ({error}); something else wrote it, delete the lane's keys"
        ) from None
    return records


def _truth(value: int, at: int) -> bool:
    if value > 1:
        raise Damaged(f"a truth value of {value} in the record at byte {at}")
    return value == 1


def _read_reset(_: bytes, at: int) -> tuple[Record, int]:
    return JournalReset(), at + 1


def _read_entry(blob: bytes, at: int) -> tuple[Record, int]:
    (_, inbound, lane_epoch, tag, fingerprint, incarnation, seq, group_seq, epoch, attempt, first, length) = (
        _ENTRY_FIELDS.unpack_from(blob, at)
    )
    group, after = read_group(blob, at + _ENTRY_FIELDS.size, length)
    arrival, is_first = (lane_epoch, tag), _truth(first, at)
    entry = OpenEntry(
        inbound, arrival, fingerprint, incarnation, seq, group, group_seq, epoch, attempt, is_first
    )
    return entry, after


def _read_range(blob: bytes, at: int) -> tuple[Record, int]:
    _, incarnation, first, last = _RANGE_FIELDS.unpack_from(blob, at)
    return SettledRange(incarnation, first, last), at + _RANGE_FIELDS.size


def _read_ended(blob: bytes, at: int) -> tuple[Record, int]:
    _, inbound, lane_epoch, tag, fingerprint, attempt, calls, length = _ENDED_FIELDS.unpack_from(blob, at)
    group, at = read_group(blob, at + _ENDED_FIELDS.size, length)
    (length,) = LENGTH.unpack_from(blob, at)
    reason, at = read_bytes(blob, at + LENGTH.size, length)
    text = reason.decode(errors="surrogatepass")
    return DeadLetterPending(inbound, (lane_epoch, tag), fingerprint, group, attempt, text, calls), at


def _read_buried(blob: bytes, at: int) -> tuple[Record, int]:
    _, inbound, lane_epoch, tag = _POSITION_FIELDS.unpack_from(blob, at)
    return Discharged(inbound, (lane_epoch, tag)), at + _POSITION_FIELDS.size


def _read_vanished(blob: bytes, at: int) -> tuple[Record, int]:
    _, inbound, lane_epoch, tag = _POSITION_FIELDS.unpack_from(blob, at)
    return Vanished(inbound, (lane_epoch, tag)), at + _POSITION_FIELDS.size


def _read_taken(blob: bytes, at: int) -> tuple[Record, int]:
    _, incarnation = _TAKEN_FIELDS.unpack_from(blob, at)
    return IncarnationEnded(incarnation), at + _TAKEN_FIELDS.size


def _read_settled(blob: bytes, at: int) -> tuple[Record, int]:
    _, inbound, proven, count = _SETTLED_FIELDS.unpack_from(blob, at)
    is_proven = _truth(proven, at)
    packed, at = read_bytes(blob, at + _SETTLED_FIELDS.size, count * _ARRIVAL_FIELDS.size)
    unpacked = _ARRIVAL_FIELDS.iter_unpack(packed)
    entries = tuple(((lane_epoch, tag), fingerprint) for lane_epoch, tag, fingerprint in unpacked)
    return SettledEntries(inbound, is_proven, entries), at


def _read_proven(blob: bytes, at: int) -> tuple[Record, int]:
    _, inbound, count = _PROVEN_FIELDS.unpack_from(blob, at)
    return ProvenAcks(inbound, count), at + _PROVEN_FIELDS.size


def _read_used(blob: bytes, at: int) -> tuple[Record, int]:
    _, incarnation, highest = _USED_FIELDS.unpack_from(blob, at)
    return NumbersUsed(incarnation, highest), at + _USED_FIELDS.size


_READERS: Final[dict[int, Callable[[bytes, int], tuple[Record, int]]]] = {
    _RESET: _read_reset,
    _ENTRY: _read_entry,
    _RANGE: _read_range,
    _ENDED: _read_ended,
    _BURIED: _read_buried,
    _VANISHED: _read_vanished,
    _TAKEN: _read_taken,
    _SETTLED: _read_settled,
    _PROVEN: _read_proven,
    _USED: _read_used,
    **PARKING_READERS,
}
_LATEST_KIND: Final = max(_READERS)
