"""A consumer that holds messages is taken back only behind a marker for its latest connection."""

from __future__ import annotations

from dispatcher.sim.checkers.checker import Checker


class DeathsChecker(Checker):
    name = "deaths"

    def taken(self, incarnation: str, *, marked: bool) -> None:
        history = self.world.history
        if marked or not history.complete:  # a Redis that forgot makes the dispatcher decide without one
            return
        for uid in set(history.in_hand.get(incarnation, {}).values()):
            life = history.lives[uid]
            if life.twins == 1 and not life.is_let_go_by(incarnation) and life.starts[-1][0] == incarnation:
                self.violate(f"{incarnation} was taken back without a marker while it had {life}")
                return
