"""Numbers that rise, as runs without gaps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last of each run."""
    if numbers and numbers[-1] - numbers[0] == len(numbers) - 1:  # nearly always
        return [(numbers[0], numbers[-1])]
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda it: it[1] - it[0])]
    return [(run[0], run[-1]) for run in runs]
