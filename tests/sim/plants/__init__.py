"""Bugs to plant: each changes the pieces of every new leadership, as a programmer could have got them wrong.

They live here only: the product has no switch for any of them. The first line of each docstring is the bug's
row in docs/simulation.md.
"""

from tests.sim.plants import (
    handing,
    holding,
    keeping,
    leading,
    moves,
    nodes,
    overdue,
    parking,
    reasons,
    stealing,
)
from tests.sim.plants.planting import PLANTS, Plant, Planted

__all__ = [
    "PLANTS", "Plant", "Planted", "handing", "holding", "keeping", "leading", "moves", "nodes", "overdue",
    "parking", "reasons", "stealing",
]  # fmt: skip
