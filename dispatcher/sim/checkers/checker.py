"""What all checkers are."""

from __future__ import annotations

from dispatcher.sim.watcher import Watcher
from dispatcher.sim.world import World


class Checker(Watcher):
    """Watches one guarantee; `violate` ends the run."""

    name = ""

    def __init__(self, world: World) -> None:
        self.world = world

    def violate(self, text: str) -> None:
        self.world.history.violate(self.name, text)
