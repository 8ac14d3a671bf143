"""Sets of sequence numbers, kept as ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class SeqRanges:
    """A set of positive numbers as disjoint inclusive ranges, ascending and never adjacent.

    `len()` is the number of ranges, which is what memory depends on. Adding a number above all others is
    O(1), any other O(ranges).
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    @classmethod
    def of(cls, numbers: Iterable[int]) -> SeqRanges:
        """The set of these numbers, which may come in any order."""
        made = cls()
        for number in sorted(numbers):
            made.add(number)
        return made

    def add(self, number: int) -> bool:
        """Put `number` in. False: it was there already."""
        lasts = self._lasts
        if not lasts or number > lasts[-1] + 1:
            self._firsts.append(number)
            lasts.append(number)
            return True
        if number == lasts[-1] + 1:
            lasts[-1] = number
            return True
        return self._insert(number)

    def _insert(self, number: int) -> bool:
        firsts, lasts = self._firsts, self._lasts
        above = bisect_right(firsts, number)  # index of the first range that begins above it
        below = above - 1
        if below >= 0 and number <= lasts[below]:
            return False
        extends_below = below >= 0 and lasts[below] == number - 1
        extends_above = firsts[above] == number + 1  # there is one above: `add` has handled the others
        if extends_below and extends_above:
            lasts[below] = lasts[above]
            del firsts[above], lasts[above]
        elif extends_below:
            lasts[below] = number
        elif extends_above:
            firsts[above] = number
        else:
            firsts.insert(above, number)
            lasts.insert(above, number)
        return True

    def __contains__(self, number: int) -> bool:
        lasts = self._lasts
        if not lasts or number > lasts[-1]:
            return False
        below = bisect_right(self._firsts, number) - 1
        return below >= 0 and number <= lasts[below]

    def __len__(self) -> int:
        return len(self._firsts)

    @property
    def last(self) -> int:
        """The highest number, 0 when empty."""
        return self._lasts[-1] if self._lasts else 0

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The ranges as (first, last), ascending."""
        return tuple(zip(self._firsts, self._lasts, strict=True))
