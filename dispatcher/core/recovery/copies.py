"""Which of its copies a consumer has, as far as it has said so."""

from __future__ import annotations

from dispatcher.core.model import Group
from dispatcher.core.ordered import OrderedSet


class Copies:
    """Those of one consumer (`ConsumerLife.note`)."""

    def __init__(self) -> None:
        self.reported: frozenset[int] | None = None  # seqs in hand, as its latest join after our start said
        self.sent_again: set[int] = set()  # seqs that its latest join did not name
        self.broken: OrderedSet[Group] = OrderedSet()  # groups of which a copy is gone that it has not seen

    def has(self, seq: int) -> bool:
        """It has said that it has this one in hand."""
        return self.reported is not None and seq in self.reported

    def lacks(self, seq: int) -> bool:
        """It has said what it has in hand, and this one is not among that."""
        return self.reported is not None and seq not in self.reported
