"""G-1: messages of one group and inbound queue are handed over in that queue's order."""

from __future__ import annotations

from typing import Final

from dispatcher.client.copies import Copy
from dispatcher.sim.checkers import Checker
from dispatcher.sim.life import Life
from dispatcher.sim.world import World

#: The number of what has none: it waits behind what waits for smaller ones.
NONE: Final = 1 << 62


def may_go_before(numbers: dict[int, int], life: Life, earlier: Life) -> bool:
    """Although that came before it: what has a larger number, or none, waits for smaller ones (N-10)."""
    return numbers.get(earlier.uid, NONE) > numbers.get(life.uid, NONE)


class Order(Checker):
    """At each begin, everything before in its group and queue is over, or done by the same incarnation."""

    name = "order"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._lines: dict[tuple[bytes, str], list[Life]] = {}
        self._numbers = world.scenario.held_numbers()
        self._first: dict[tuple[bytes, str], int] = {}

    def stored(self, life: Life) -> None:
        group = self.world.ordered_group(life.group)
        if group is not None and life.twins == 1 and (not life.repeated or life.stored == 1):
            self._lines.setdefault((group, life.inbound), []).append(life)

    def reopened(self, life: Life) -> None:
        group = self.world.ordered_group(life.group)
        if group is not None:
            self._first[group, life.inbound] = 0

    def begun(self, life: Life, incarnation: str, copy: Copy) -> None:
        group = self.world.ordered_group(life.group)
        if group is None or life.twins > 1 or self._may_be_over(life):
            return
        key = (group, life.inbound)
        line = self._lines.get(key, [])  # none: the broker lost the first of two, which was of another group
        first = self._first.get(key, 0)
        while first < len(line) and line[first].over:
            first += 1
        self._first[key] = first
        for earlier in line[first:]:
            if earlier.place >= life.place:
                break
            over = earlier.over or earlier.given_up or earlier.expires or earlier.unsure
            elsewhere = earlier.repeated and self.world.ordered_group(earlier.group) != group
            if over or elsewhere or may_go_before(self._numbers, life, earlier):
                continue
            if incarnation not in earlier.done_by:
                self.violate(f"{incarnation} begins {life} before {earlier}")
                return

    def _may_be_over(self, life: Life) -> bool:
        """Nobody but a Redis that forgot it knew that this message is over: it may come again, and late."""
        was_over = life.over or life.given_up or bool(life.unsure)
        return was_over and life.uid in self.world.history.excused
