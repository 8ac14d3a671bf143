"""Values that the tests of the store write and expect back."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dispatcher.core.effects import Effects
from dispatcher.core.model import Original
from dispatcher.core.parking.orders import (
    GroupParked,
    ParkingQueueForgotten,
    ParkingQueueNamed,
    QueueUnparked,
    Relocated,
    Relocating,
    TermNeeded,
)
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
from dispatcher.core.tables import IncarnationRow, OwnerRow

#: The lane epoch of every arrival here.
EPOCH = 1_700_000_000


def message(tag: int, inbound: int = 0, group: bytes | None = b"g") -> Original:
    return Original(inbound, tag, (EPOCH, tag), tag.to_bytes(16, "big"), group, None, 0, 0)


def dispatched(tag: int, inbound: int = 0, incarnation: int = 1, group: bytes | None = b"g") -> Dispatched:
    return Dispatched(message(tag, inbound, group), incarnation, "amq.gen-q", tag, tag, EPOCH << 20, 1)


def entry(record: Dispatched) -> OpenEntry:
    """What a Dispatched is once it was read back."""
    origin = record.message
    return OpenEntry(
        origin.inbound, origin.arrival, origin.fingerprint, record.incarnation, record.seq, origin.group_id,
        record.group_seq, record.epoch, record.attempt, record.first,
    )  # fmt: skip


def incarnation(consumer: str, state: str = "live") -> IncarnationRow:
    return IncarnationRow(consumer, f"uuid-{consumer}", "amq.gen-q", 1, 50, state)


def step(*records: Record, **tables: Any) -> Effects:
    return Effects(records=list(records), **tables)


def checkpoint(*records: Record, **tables: Any) -> Effects:
    return Effects(records=[JournalReset(), *records], checkpoint=True, **tables)


def owned(count: int) -> dict[bytes, OwnerRow | None]:
    return {b"group-%d" % number: OwnerRow(1, number) for number in range(count)}


_counters = st.integers(0, 2**63)
_fingerprints = st.binary(min_size=16, max_size=16)
_arrivals = st.tuples(_counters, _counters)
_groups = st.none() | st.binary(max_size=40)
_attempts = st.integers(0, 2**32 - 1)
_texts = st.text(st.characters(exclude_categories=()), max_size=30)  # lone surrogates too
inbound_numbers = st.integers(0, 254) | st.just(0xFFFF)

records = st.one_of(
    st.just(JournalReset()),
    st.builds(
        OpenEntry, inbound_numbers, _arrivals, _fingerprints, _counters, _counters, _groups,
        _counters, _counters, _attempts, st.booleans(),
    ),
    st.builds(SettledRange, _counters, _counters, _counters),
    st.builds(DeadLetterPending, inbound_numbers, _arrivals, _fingerprints, _groups, _attempts, _texts,
        _attempts),
    st.builds(Discharged, inbound_numbers, _arrivals),
    st.builds(Vanished, inbound_numbers, _arrivals),
    st.builds(IncarnationEnded, _counters),
    st.builds(
        SettledEntries, inbound_numbers, st.booleans(),
        st.lists(st.tuples(_arrivals, _fingerprints), max_size=5).map(tuple),
    ),
    st.builds(ProvenAcks, inbound_numbers, _counters),
    st.builds(NumbersUsed, _counters, _counters),
    st.builds(ParkingQueueNamed, inbound_numbers, st.text(max_size=10).filter(str.isascii)),
    st.builds(ParkingQueueForgotten, inbound_numbers),
    st.builds(GroupParked, _groups, inbound_numbers, _counters, _counters),
    st.builds(QueueUnparked, inbound_numbers),
    st.builds(
        Relocating, inbound_numbers, _arrivals, _fingerprints, _groups, _attempts, inbound_numbers,
        _fingerprints, _counters,
    ),
    st.builds(Relocated, inbound_numbers, _arrivals),
    st.builds(TermNeeded, inbound_numbers, _fingerprints, _counters),
)  # fmt: skip
