"""How a planted bug is described: its effect, the checkers that must find it, where the search begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dispatcher.sim.scenario import RunScenario
from dispatcher.sim.seeds import make_scenario

Plant = Callable[[Any, Any, Any], None]  # (lane, session, store)


class Planted(NamedTuple):
    """A bug, and who has to find it."""

    plant: Plant
    bug: str
    checkers: tuple[str, ...]  # one of them finds it; anything else that happens does not count
    seed: int  # where the search begins: one that found it when this was written
    cluster: bool  # on a cluster, else on a single node

    def scenario(self, seed: int) -> RunScenario:
        return make_scenario(seed, cluster=self.cluster)


PLANTS: dict[str, Planted] = {}


def planted(*checkers: str, seed: int, cluster: bool = False) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        bug = (plant.__doc__ or "").partition("\n")[0]
        PLANTS[plant.__name__] = Planted(plant, bug, checkers, seed, cluster)
        return plant

    return register
