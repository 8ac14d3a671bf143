"""Checkers: each watches one guarantee. To add one, write a class in a module of its own and name it here."""

from __future__ import annotations

from typing import Final

from dispatcher.sim.checkers.bounds import BoundsChecker
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.checkers.deaths import DeathsChecker
from dispatcher.sim.checkers.duplicates import DuplicatesChecker
from dispatcher.sim.checkers.fence import FenceChecker
from dispatcher.sim.checkers.going_on import GoingOnChecker
from dispatcher.sim.checkers.independence import IndependenceChecker
from dispatcher.sim.checkers.kept import KeptChecker
from dispatcher.sim.checkers.limits import LimitsChecker
from dispatcher.sim.checkers.liveness import LivenessChecker
from dispatcher.sim.checkers.look_ahead import LookAheadChecker
from dispatcher.sim.checkers.loss import LossChecker
from dispatcher.sim.checkers.moves import MovesChecker
from dispatcher.sim.checkers.operations import OperationsChecker
from dispatcher.sim.checkers.order import OrderChecker
from dispatcher.sim.checkers.overdue import OverdueChecker
from dispatcher.sim.checkers.overlap import OverlapChecker
from dispatcher.sim.checkers.poison import PoisonChecker
from dispatcher.sim.checkers.readings import ReadingsChecker
from dispatcher.sim.checkers.replies import RepliesChecker
from dispatcher.sim.checkers.said import SaidChecker
from dispatcher.sim.checkers.sequence import SequenceChecker
from dispatcher.sim.checkers.share import ShareChecker
from dispatcher.sim.checkers.why import WhyChecker
from dispatcher.sim.world import World

#: In the order in which they are told what happens.
CHECKERS: Final[tuple[type[Checker], ...]] = (
    LossChecker,
    DuplicatesChecker,
    OrderChecker,
    OverlapChecker,
    ShareChecker,
    LimitsChecker,
    FenceChecker,
    DeathsChecker,
    BoundsChecker,
    PoisonChecker,
    SaidChecker,
    OperationsChecker,
    MovesChecker,
    RepliesChecker,
    SequenceChecker,
    KeptChecker,
    OverdueChecker,
    WhyChecker,
    IndependenceChecker,
    LookAheadChecker,
    GoingOnChecker,
    LivenessChecker,
)
#: For lanes whose applications only read a queue: the promises that hold there. Settles are not known.
OF_READERS: Final[tuple[type[Checker], ...]] = (
    LossChecker,
    FenceChecker,
    BoundsChecker,
    RepliesChecker,
    OperationsChecker,
    MovesChecker,
    KeptChecker,
    ReadingsChecker,
    WhyChecker,
    LookAheadChecker,
    GoingOnChecker,
    LivenessChecker,
)


def make_checkers(world: World) -> list[Checker]:
    """Those for this world's lane."""
    scenario = world.scenario
    left_out: set[type[Checker]] = set() if scenario.partitions else {GoingOnChecker}
    if scenario.options["ack_timeout_ms"] is None:
        left_out.add(OverdueChecker)
    kinds = OF_READERS if scenario.hands_over else CHECKERS
    return [kind(world) for kind in kinds if kind not in left_out]
