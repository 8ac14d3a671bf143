"""How many groups the messages have, and how evenly they are spread over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final

UNIFORM: Final = "uniform"
ZIPF: Final = "zipf"
HALF: Final = "half"


@dataclass(frozen=True, slots=True)
class Shape:
    """`spread`: UNIFORM, each group in turn; ZIPF, the n-th group getting 1/n of what the first gets; HALF,
    every second message is of the first group, and the other groups take the rest in turn."""

    groups: int = 1_000
    spread: str = UNIFORM

    def __str__(self) -> str:
        return f"{self.groups:,} groups{' by Zipf' if self.spread == ZIPF else ''}"

    def group_numbers(self, count: int) -> Sequence[int]:
        """The groups of `count` messages, in their order; the same ones every time."""
        if self.spread == UNIFORM:
            return [number % self.groups for number in range(count)]
        if self.spread == HALF:
            return [number % 2 and 1 + number // 2 % (self.groups - 1) for number in range(count)]
        weights = list(accumulate(1 / (number + 1) for number in range(self.groups)))
        return Random(self.groups).choices(range(self.groups), cum_weights=weights, k=count)
