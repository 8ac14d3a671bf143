"""F-7: of one group id no more is in flight than `max_in_flight_per_group`."""

from __future__ import annotations

from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.facts import DispatchFact
from dispatcher.sim.life import Life
from dispatcher.sim.world import World


class LimitsChecker(Checker):
    """Counts hand-overs as they are committed, less what their consumers have settled since."""

    name = "limits"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._most = world.scenario.options["max_in_flight_per_group"]
        self._out: dict[bytes, list[tuple[Life, str]]] = {}

    def dispatched(self, life: Life, to: DispatchFact) -> None:
        history = self.world.history
        if self._most is None or life.group is None or life.twins > 1 or not history.complete:
            return
        former = self._out.get(life.group, ())
        out = [(other, holder) for other, holder in former if other is not life and self._has(holder, other)]
        if len(out) >= self._most and to.attempt == 1:  # suspects go beside the limit
            self.violate(f"{to} is handed over while {len(out)} of its group are in flight: {life}, {out}")
        self._out[life.group] = [*out, (life, to.incarnation)]

    def _has(self, holder: str, life: Life) -> bool:
        history = self.world.history
        gone = life.over or life.given_up or life.is_let_go_by(holder) or holder in history.taken
        return not gone and life.uid not in history.excused
