"""The journal's bytes for records of parking; the rest of the journal is in codec.py.

    ParkingQueueNamed      queue u16, consumer
    ParkingQueueForgotten  queue u16
    GroupParked            queue u16, count u64, since u64, group (an older one: without since)
    QueueUnparked          queue u16
    Moving                 inbound u16, arrival u64 u64, fingerprint 16, attempt u32, target u16, copy 16,
                           term u64, group
    Moved                  inbound u16, arrival u64 u64
    TermNeeded             queue u16, copy 16, term u64

`consumer` is a u32 length and UTF-8. Queues are written by their stored numbers, as inbound queues are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from dispatcher.core.parking.orders import (
    GroupParked,
    ParkingQueueForgotten,
    ParkingQueueNamed,
    QueueUnparked,
    Relocated,
    Relocating,
    TermNeeded,
)
from dispatcher.core.records import Record
from dispatcher.redis_store.fields import LENGTH, checked, group_length, read_bytes, read_group

_NAMED, _FORGOTTEN, _PARKED, _UNPARKED, _MOVING, _MOVED, _TERM = range(11, 18)
_PARKED_SINCE: Final = 18
_QUEUE_FIELDS = Struct("!BH")
_PARKED_FIELDS = Struct("!BHQI")
_SINCE_FIELDS = Struct("!BHQQI")
_MOVING_FIELDS = Struct("!BHQQ16sIH16sQI")
_MOVED_FIELDS = Struct("!BHQQ")
_TERM_FIELDS = Struct("!BH16sQ")


def encode_parking(record: Record, stored: Sequence[int]) -> bytes | None:
    """The record's bytes; None: it is not of parking."""
    match record:
        case Relocating():
            return _MOVING_FIELDS.pack(
                _MOVING, stored[record.inbound], *record.arrival, checked(record.fingerprint), record.attempt,
                stored[record.target], checked(record.copy), record.term, group_length(record.group),
            ) + (record.group or b"")  # fmt: skip
        case Relocated():
            return _MOVED_FIELDS.pack(_MOVED, stored[record.inbound], *record.arrival)
        case GroupParked():
            length = group_length(record.group)
            numbers = stored[record.queue], record.count, record.since_ms
            fixed = _SINCE_FIELDS.pack(_PARKED_SINCE, *numbers, length)
            return fixed + (record.group or b"")
        case QueueUnparked():
            return _QUEUE_FIELDS.pack(_UNPARKED, stored[record.queue])
        case ParkingQueueNamed():
            consumer = record.consumer.encode()
            fixed = _QUEUE_FIELDS.pack(_NAMED, stored[record.queue])
            return fixed + LENGTH.pack(len(consumer)) + consumer
        case ParkingQueueForgotten():
            return _QUEUE_FIELDS.pack(_FORGOTTEN, stored[record.queue])
        case TermNeeded():
            return _TERM_FIELDS.pack(_TERM, stored[record.queue], checked(record.copy), record.term)
    return None


def _read_named(blob: bytes, at: int) -> tuple[Record, int]:
    _, queue = _QUEUE_FIELDS.unpack_from(blob, at)
    at += _QUEUE_FIELDS.size
    (length,) = LENGTH.unpack_from(blob, at)
    consumer, at = read_bytes(blob, at + LENGTH.size, length)
    return ParkingQueueNamed(queue, consumer.decode()), at


def _read_forgotten(blob: bytes, at: int) -> tuple[Record, int]:
    _, queue = _QUEUE_FIELDS.unpack_from(blob, at)
    return ParkingQueueForgotten(queue), at + _QUEUE_FIELDS.size


def _read_parked(blob: bytes, at: int) -> tuple[Record, int]:
    _, queue, count, length = _PARKED_FIELDS.unpack_from(blob, at)
    group, at = read_group(blob, at + _PARKED_FIELDS.size, length)
    return GroupParked(group, queue, count), at


def _read_parked_since(blob: bytes, at: int) -> tuple[Record, int]:
    _, queue, count, since_ms, length = _SINCE_FIELDS.unpack_from(blob, at)
    group, at = read_group(blob, at + _SINCE_FIELDS.size, length)
    return GroupParked(group, queue, count, since_ms), at


def _read_unparked(blob: bytes, at: int) -> tuple[Record, int]:
    _, queue = _QUEUE_FIELDS.unpack_from(blob, at)
    return QueueUnparked(queue), at + _QUEUE_FIELDS.size


def _read_moving(blob: bytes, at: int) -> tuple[Record, int]:
    _, inbound, lane_epoch, tag, fingerprint, attempt, target, copy, term, length = (
        _MOVING_FIELDS.unpack_from(blob, at)
    )
    group, at = read_group(blob, at + _MOVING_FIELDS.size, length)
    return Relocating(inbound, (lane_epoch, tag), fingerprint, group, attempt, target, copy, term), at


def _read_moved(blob: bytes, at: int) -> tuple[Record, int]:
    _, inbound, lane_epoch, tag = _MOVED_FIELDS.unpack_from(blob, at)
    return Relocated(inbound, (lane_epoch, tag)), at + _MOVED_FIELDS.size


def _read_term(blob: bytes, at: int) -> tuple[Record, int]:
    _, queue, copy, term = _TERM_FIELDS.unpack_from(blob, at)
    return TermNeeded(queue, copy, term), at + _TERM_FIELDS.size


PARKING_READERS: Final[dict[int, Callable[[bytes, int], tuple[Record, int]]]] = {
    _NAMED: _read_named,
    _FORGOTTEN: _read_forgotten,
    _PARKED: _read_parked,
    _PARKED_SINCE: _read_parked_since,
    _UNPARKED: _read_unparked,
    _MOVING: _read_moving,
    _MOVED: _read_moved,
    _TERM: _read_term,
}
