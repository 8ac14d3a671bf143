"""Ranges of sequence numbers behave like a set, and stay minimal."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.client.ranges import SeqRanges


def expanded(ranges: SeqRanges) -> set[int]:
    return {number for first, last in ranges.pairs() for number in range(first, last + 1)}


@given(st.lists(st.integers(1, 60)))
def test_any_order_of_additions_gives_the_set(numbers: list[int]) -> None:
    ranges, model = SeqRanges(), set[int]()
    for number in numbers:
        assert ranges.add(number) == (number not in model)
        model.add(number)
        assert expanded(ranges) == model
    assert all(number in ranges for number in model)
    assert not any(number in ranges for number in range(62) if number not in model)
    assert ranges.last == max(model, default=0)


@given(st.lists(st.integers(1, 60)))
def test_ranges_are_ascending_and_never_touch(numbers: list[int]) -> None:
    ranges = SeqRanges()
    for number in numbers:
        ranges.add(number)
    pairs = ranges.pairs()
    assert len(ranges) == len(pairs)
    assert all(first <= last for first, last in pairs)
    assert all(last + 1 < next_first for (_, last), (next_first, _) in pairwise(pairs))


def test_a_gap_is_never_closed() -> None:
    ranges = SeqRanges()
    for number in (1, 2, 3, 5, 6):
        ranges.add(number)
    assert ranges.pairs() == ((1, 3), (5, 6))
