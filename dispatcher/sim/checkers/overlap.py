"""G-2: two incarnations that are not taken back never have unsettled messages of one group."""

from __future__ import annotations

from dispatcher.client.copies import Copy
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.life import Life
from dispatcher.sim.world import World


class OverlapChecker(Checker):
    name = "overlap"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._held: dict[bytes, dict[str, list[Life]]] = {}

    def handed(self, life: Life, incarnation: str, copy: Copy) -> None:
        history = self.world.history
        group = self.world.ordered_group_of(copy, life)
        if group is None or life.twins > 1:
            return
        holders = self._held.setdefault(group, {})
        for other, held in list(holders.items()):
            held[:] = [] if other in history.taken else [m for m in held if self._has(other, m)]
            if held and other != incarnation:
                self.violate(f"{incarnation} gets {life} while {other} has {held[0]}")
            if not held:
                del holders[other]
        holders.setdefault(incarnation, []).append(life)

    def _has(self, holder: str, life: Life) -> bool:
        return not life.is_let_go_by(holder) and life.uid not in self.world.history.excused
