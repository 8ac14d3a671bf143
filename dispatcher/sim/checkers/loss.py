"""G-3: an original is acked only after its settle, or its stored next copy, was committed; none is lost."""

from __future__ import annotations

from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.life import Life


class LossChecker(Checker):
    name = "loss"

    def acked(self, life: Life) -> None:
        history = self.world.history
        if life.twins > 1:
            if life.fresh > len(life.starts) + life.purges and not life.was_parked:
                self.violate(f"acked although it was never delivered before nor handed over: {life}")
            return
        is_other_left = life.repeated and len(life.acked_places) < life.stored
        if not (life.over or life.unsure or _is_kept(life) or is_other_left):
            self.violate(f"acked although no consumer has settled it: {life}")
        if life.uid not in history.may_be_acked:
            self.violate(f"acked before the commit that says so: {life}")

    def acked_parked(self, life: Life) -> None:
        """Another original must be left, or the message must be done with."""
        if life.twins > 1 or life.over or life.unsure or _is_kept(life):
            return
        if life.acked >= life.stored:
            self.violate(f"its last parked copy was acked although no consumer has settled it: {life}")

    def at_end(self) -> None:
        for life in self.world.history.lives.values():
            if life.twins > 1:
                done = len(set(life.starts)) + life.buried + life.purges
                if done < max(min(1, life.stored), life.stored - life.risks):
                    self.violate(f"only {done} of {life.stored} equal messages were handed over: {life}")
            elif life.confirmed and not life.over:
                self.violate(f"never settled: {life}")
            elif life.stored and not (life.acked or life.lost or life.expired):
                self.violate(f"over, and still in its queue: {life}")


def _is_kept(life: Life) -> bool:
    """A parking queue has it on disk."""
    return any(copy.synced for copy in life.parked)
