"""D-1: a consumer has no more in hand than its prefetch. F-7: of one group id no more is in flight than
`max_in_flight_per_group`."""

from __future__ import annotations

from dispatcher.client.copies import Copy
from dispatcher.client.member import Member, Standing
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.consumers import ConsumerMachine
from dispatcher.sim.facts import DispatchFact
from dispatcher.sim.life import Life
from dispatcher.sim.world import World


class LimitsChecker(Checker):
    """Looks at what consumers get, and counts hand-overs as they are committed, less what their consumers
    have settled since."""

    name = "limits"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._most = world.scenario.options["max_in_flight_per_group"]
        self._out: dict[bytes, list[tuple[Life, str]]] = {}
        #: Of each incarnation: which welcome it has got, and the seqs that were in hand then.
        self._welcomed: dict[str, tuple[int, frozenset[int]]] = {}

    def dispatched(self, life: Life, to: DispatchFact) -> None:
        history = self.world.history
        if self._most is None or life.group is None or life.twins > 1 or not history.complete:
            return
        former = self._out.get(life.group, ())
        out = [(other, holder) for other, holder in former if other is not life and self._has(holder, other)]
        if len(out) >= self._most and to.attempt == 1:  # suspects go beside the limit
            self.violate(f"{to} is handed over while {len(out)} of its group are in flight: {life}, {out}")
        self._out[life.group] = [*out, (life, to.incarnation)]

    def handed(self, life: Life, incarnation: str, copy: Copy) -> None:
        """What is in hand when the first copies after a welcome have come is not judged: the SDK gets them
        together with copies that were sent before the dispatcher knew of that prefetch."""
        member = self._member(incarnation)
        if member is None or member.standing is not Standing.JOINED:
            return
        n, before = self._welcomed.get(incarnation, (0, frozenset()))
        if n != member.n:
            self._welcomed[incarnation] = member.n, frozenset(member.in_hand)
        elif len(member.in_hand) > member.prefetch and copy.seq not in before:
            in_hand, prefetch = len(member.in_hand), member.prefetch
            self.violate(f"{incarnation} has {in_hand} in hand, and its prefetch is {prefetch}")

    def _member(self, incarnation: str) -> Member[Copy] | None:
        for machine in self.world.machines.values():
            if isinstance(machine, ConsumerMachine) and machine.membership.member.incarnation == incarnation:
                return machine.membership.member
        return None

    def _has(self, holder: str, life: Life) -> bool:
        history = self.world.history
        gone = life.over or life.given_up or life.is_let_go_by(holder) or holder in history.taken
        return not gone and life.uid not in history.excused
