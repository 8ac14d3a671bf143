"""G-1: messages of one group and inbound queue are handed over in that queue's order."""

from __future__ import annotations

from typing import Final

from dispatcher.client.copies import Copy
from dispatcher.core.effects import Snapshot
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.life import Life
from dispatcher.sim.world import World

#: Stands for the number of a message without one: it waits behind messages that wait for smaller numbers.
NONE: Final = 1 << 62
#: A returned message is parked in front of its followers after this time at the latest (docs/guarantees.md).
IN_FRONT_MS: Final = 5_000


def may_go_before(life: Life, earlier: Life) -> bool:
    """Whether `life` may go before the earlier one where a lane holds: messages with a larger number, or
    none, wait for smaller ones (N-10)."""
    return (earlier.number or NONE) > (life.number or NONE)


class OrderChecker(Checker):
    """When a handler begins, all earlier messages of that group and queue are done with, or this incarnation
    has done them."""

    name = "order"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._lines: dict[tuple[bytes, str], list[Life]] = {}
        self._holds = world.scenario.holds
        self._first: dict[tuple[bytes, str], int] = {}
        self._behind: set[int] = set()  # only the lost Redis knew that they precede parked ones
        self._parked: set[int] = set()  # messages that were parked then
        #: Their copies in a parking queue may count although older ones are lost (P-9b).
        self._early: set[int] = set()
        self._on_way: set[int] = (
            set()
        )  # messages on their way there then: they may come twice, the first time early

    def stored(self, life: Life) -> None:
        group = self.world.ordered_group(life.group)
        if group is not None and life.twins == 1 and (not life.repeated or life.stored == 1):
            self._lines.setdefault((group, life.inbound), []).append(life)

    def reopened(self, life: Life) -> None:
        group = self.world.ordered_group(life.group)
        if group is not None:
            self._first[group, life.inbound] = 0

    def read(self, snapshot: Snapshot) -> None:
        history = self.world.history
        if not history.doubt:
            if history.lost_parked and not snapshot.complete:
                self._early.update(
                    life.uid for life in history.lives.values() if life.parked and not life.acked
                )
            return
        for life in history.lives.values():
            if life.parked:
                (self._parked if life.acked else self._on_way).add(life.uid)
            elif life.came_back_ms is not None and life.came_back_ms >= history.forgot_ms - IN_FRONT_MS:
                self._behind.add(life.uid)
        alive = {machine.process.name for machine in self.world.consumers if machine.process is not None}
        for incarnation, held in history.in_hand.items():
            if incarnation not in history.taken and incarnation.rpartition("-")[0] not in alive:
                self._behind.update(held.values())

    def begun(self, life: Life, incarnation: str, copy: Copy) -> None:
        group = self.world.ordered_group(life.group)
        if group is None or life.twins > 1 or self._may_be_over(life) or life.uid in self._early:
            return
        if self.world.ordered_group_of(copy, life) != group:
            return  # it is the repetition, and came as another message
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
            behind = earlier.is_behind_newer or (earlier.uid in self._behind and life.uid in self._parked)
            if over or elsewhere or behind or (self._holds and may_go_before(life, earlier)):
                continue
            if incarnation not in earlier.done_by:
                self.violate(f"{incarnation} begins {life} before {earlier}")
                return

    def _may_be_over(self, life: Life) -> bool:
        """Only Redis knew that it was done with, and forgot it: it may come again, out of its turn."""
        was_over = life.over or life.given_up or bool(life.unsure) or life.uid in self._on_way
        return was_over and life.uid in self.world.history.excused
