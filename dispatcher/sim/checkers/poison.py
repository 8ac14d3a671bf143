"""M-1, M-2: a suspect is handed over alone; it is called poison only if it killed its consumer alone."""

from __future__ import annotations

from dispatcher.core.optional.poison import REASON_POISON
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.facts import DispatchFact
from dispatcher.sim.life import Life
from dispatcher.sim.world import World


class PoisonChecker(Checker):
    """Looks at the hand-overs that were committed, in their order."""

    name = "poison"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        attempts = world.scenario.options["retry"].attempts
        self._deaths_min = max(1, attempts - 1)
        self._given: dict[str, list[Life]] = {}  # by incarnation
        self._holders: dict[int, list[str]] = {}  # by message
        self._unbegun: dict[int, int] = {}  # by message: how many of them had not begun it

    def dispatched(self, life: Life, to: DispatchFact) -> None:
        incarnation, attempt = to.incarnation, to.attempt
        given = self._given.setdefault(incarnation, [])
        self._unbegun[life.uid] = to.unbegun
        alone = given[-1] if given and self._is_suspect(given[-1], incarnation) else None
        if alone is not None and self._has(incarnation, alone) and alone is not life:
            self.violate(f"{incarnation} gets {life} while it tries {alone} alone")
        given.append(life)
        self._holders.setdefault(life.uid, []).append(incarnation)
        if attempt - to.unbegun > self._deaths_min and self._is_suspect(life, incarnation):
            others = [other for other in given if other is not life and self._has(incarnation, other)]
            if others:
                self.violate(f"{incarnation} gets the suspect {life} beside {others[0]}")

    def _is_suspect(self, life: Life, incarnation: str) -> bool:
        """Enough other consumers may have begun it and died. A leader whose Redis forgot deaths may not know
        that.

        A consumer that settled it did not die of it: it may come twice, when Redis forgot its id.
        """
        former = set(self._holders[life.uid]) - {incarnation} - life.settled.keys()
        return life.twins == 1 and self._is_known(life) and self._deaths(life, former) >= self._deaths_min

    def _deaths(self, life: Life, holders: set[str]) -> int:
        return len(holders) - self._unbegun.get(life.uid, 0)

    def _is_known(self, life: Life) -> bool:
        return self.world.history.complete and life.uid not in self.world.history.excused

    def _has(self, incarnation: str, life: Life) -> bool:
        """Unsettled there, as far as the broker knows, and its original exists."""
        gone = life.lost or life.expired or life.given_up or life.twins > 1 or not self._is_known(life)
        return not (gone or life.is_let_go_by(incarnation))

    def buried(self, life: Life) -> None:
        if life.failed:  # a hand-over that it was released for counts as the others
            return
        if life.dead_reason != REASON_POISON or life.twins > 1 or not self._is_known(life):
            return
        holders = self._holders.get(life.uid, [])
        deaths = self._deaths(life, set(holders))
        if deaths <= self._deaths_min:
            self.violate(f"called poison after {deaths} deaths: {life}")
        elif self._given[holders[-1]][-1] is not life:
            self.violate(f"called poison although {holders[-1]} got others after it: {life}")
