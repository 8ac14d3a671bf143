"""Changes on the wire, and which queue they go to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.demo.workload import RowChange, decode, encode, inbound_index, repeated, replayed

raw = st.binary(max_size=40)


@given(st.integers(min_value=0, max_value=2**53), raw, raw, raw, raw)
def test_any_bytes_survive_the_wire(number: int, group: bytes, key: bytes, old: bytes, new: bytes) -> None:
    change = RowChange(group, key, old, new)
    assert decode(group, encode(number, change)) == (number, change)


def test_a_group_always_goes_to_the_same_queue_and_both_are_used() -> None:
    groups = [b"path/%d" % n for n in range(1_000)]
    places = [inbound_index(group, 2) for group in groups]
    assert places == [inbound_index(group, 2) for group in groups]
    assert 400 < sum(places) < 600


def test_repetition_deletes_everything_in_between() -> None:
    changes = [
        RowChange(b"g", b"a", b"", b"1"),
        RowChange(b"g", b"a", b"1", b"2"),
        RowChange(b"h", b"b", b"", b"1"),
    ]
    longer, times = repeated(changes, 20)
    assert len(longer) >= 20
    assert times == 5
    assert replayed(longer) == replayed(changes)


def test_a_contradiction_is_noticed() -> None:
    with pytest.raises(ValueError, match="does not follow"):
        replayed([RowChange(b"g", b"a", b"1", b"2")])
