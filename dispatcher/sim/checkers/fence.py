"""A former leader that wakes up does no harm: once another leads, Redis takes nothing of it."""

from __future__ import annotations

from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.world import World


class FenceChecker(Checker):
    name = "fence"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._lane_epoch = 0

    def led(self, lane_epoch: int) -> None:
        self._lane_epoch = lane_epoch  # lower than before if Redis lost the former

    def committed(self, lane_epoch: int) -> None:
        if lane_epoch != self._lane_epoch and not self.world.history.doubt:
            self.violate(f"a commit of leader {lane_epoch} was taken although {self._lane_epoch} leads")
