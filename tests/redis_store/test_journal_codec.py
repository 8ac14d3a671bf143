"""The journal's bytes: what goes in comes out, and nothing else is taken for a journal."""

from __future__ import annotations

from struct import Struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dispatcher.core.parking.orders import GroupParked
from dispatcher.core.records import Dispatched, OpenEntry, Record, SettledRange
from dispatcher.errors import ConfigurationError, InvalidTransition
from dispatcher.redis_store.codec import VERSION, decode, encode
from dispatcher.redis_store.tables import read_owners
from tests.redis_store import samples

#: Every number stands for itself.
SAME = range(0x1_0000)


@given(st.lists(samples.records, max_size=20))
def test_every_record_comes_back_as_it_was(records: list[Record]) -> None:
    assert decode(encode(records, SAME), "blob") == records


@pytest.mark.parametrize("group", [None, b"", b"orders-7", bytes(range(256)) * 8])
@pytest.mark.parametrize("first", [False, True])
def test_a_dispatch_comes_back_as_an_open_entry(group: bytes | None, first: bool) -> None:
    record = Dispatched(samples.message(7, 2, group), 3, "amq.gen-x", 2**52, 1, 2**51, 4, first)
    expected = OpenEntry(
        2, (samples.EPOCH, 7), record.message.fingerprint, 3, 2**52, group, 1, 2**51, 4, first
    )
    assert decode(encode([record], SAME), "blob") == [expected]


def test_inbound_queues_are_written_by_their_stored_number() -> None:
    records: list[Record] = [
        samples.entry(samples.dispatched(1, inbound=1)),
        samples.dispatched(2, inbound=0),
    ]
    read = decode(encode(records, [41, 7]), "blob")
    assert [record.inbound for record in read if isinstance(record, OpenEntry)] == [7, 41]


def _read(blob: bytes) -> list[Record] | str:
    """The records, or the error's text."""
    try:
        return decode(blob, "entry 7-0")
    except ConfigurationError as error:
        return str(error)


@given(st.binary(max_size=200))
@example(b"")
@example(bytes((VERSION,)))
def test_any_bytes_are_records_or_a_clear_error(data: bytes) -> None:
    for blob in (data, bytes((VERSION,)) + data):
        result = _read(blob)
        if isinstance(result, str):
            assert result.startswith("entry 7-0: ")
        else:
            assert decode(encode(result, SAME), "blob") == result


@given(st.lists(samples.records, min_size=1, max_size=5), st.data())
def test_a_cut_blob_is_its_first_records_or_a_clear_error(records: list[Record], data: st.DataObject) -> None:
    blob = encode(records, SAME)
    result = _read(blob[: data.draw(st.integers(0, len(blob) - 1))])
    if isinstance(result, str):
        assert result.startswith("entry 7-0: ")
    else:
        assert result == records[: len(result)] != records


LATER = (
    "a later one wrote it; upgrade this replica (to go back to its version, let the later one empty the lane"
)


@pytest.mark.parametrize(
    ("blob", "found", "advice"),
    [
        (
            b"\x09anything",
            f"was written in format 9, and this version knows up to {VERSION}",
            LATER,
        ),
        (
            bytes((VERSION, 7, 0, 0, 0, 0, 0, 0, 0, 1, 19)),
            "has a record of kind 19, and this version knows up to 18",
            LATER,
        ),
        (
            b"\x01anything",
            "was written in format 1, and this version begins with 2",
            "an earlier one wrote it; let that one empty the lane, stop it and delete the lane's keys",
        ),
    ],
)
def test_what_another_version_wrote_is_said_to_be_its(blob: bytes, found: str, advice: str) -> None:
    said = _read(blob)
    assert isinstance(said, str)
    assert said.startswith(f"entry 7-0: {found}: {advice}")


def test_an_owner_that_a_later_version_wrote_is_said_to_be_its() -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_owners([b"f", b"\x01" + bytes(16), b"g", b"\x02" + bytes(16)], lambda group: f"row {group!r}")
    found = "row b'g': was written in format 2, and this version knows up to 1"
    assert str(refused.value).startswith(f"{found}: {LATER}")


def test_a_count_beyond_the_blob_is_refused_before_anything_is_built() -> None:
    blob = bytes((VERSION, 8)) + b"\0\0" + b"\0" + b"\xff\xff\xff\xff"
    with pytest.raises(ConfigurationError, match=r"ends after 9 bytes"):
        decode(blob, "entry")


def test_a_fingerprint_that_would_be_cut_is_refused() -> None:
    wrong = samples.entry(samples.dispatched(1))._replace(fingerprint=b"short")
    with pytest.raises(InvalidTransition, match="5 bytes"):
        encode([wrong], SAME)


def test_a_range_costs_25_bytes() -> None:
    assert len(encode([SettledRange(1, 2, 3)], SAME)) == 1 + 25


def test_a_parked_group_of_a_version_that_did_not_say_since_when_is_read() -> None:
    older = bytes((VERSION,)) + Struct("!BHQI").pack(13, 300, 7, 1) + b"g"
    assert decode(older, "journal") == [GroupParked(b"g", 300, 7, 0)]
