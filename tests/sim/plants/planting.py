"""How a planted bug is described: its effect, the checkers that must find it, where the search begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Plant = Callable[[Any, Any, Any], None]  # (lane, session, store)


class Planted(NamedTuple):
    """A bug, and who has to find it."""

    plant: Plant
    bug: str
    checkers: tuple[str, ...]  # one of them finds it; anything else that happens does not count
    seed: int  # where the search begins: one that found it when this was written


PLANTS: dict[str, Planted] = {}


def planted(*checkers: str, seed: int) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        bug = (plant.__doc__ or "").partition("\n")[0]
        PLANTS[plant.__name__] = Planted(plant, bug, checkers, seed)
        return plant

    return register
