"""DWRR: while every inbound queue has a message that can go, each gets its weight's share."""

from __future__ import annotations

from typing import Any, Final

from dispatcher.core.inbound import Inbound
from dispatcher.core.lane import Lane
from dispatcher.core.optional.poison import Suspects
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.world import World

#: No message of a scenario is larger.
MESSAGE_BYTES_MAX: Final = 200


class ShareChecker(Checker):
    """Counts the served cost in each stretch in which all queues are eligible.

    A deficit that a queue had overdrawn when the stretch began counts as served in it: a batch is charged at
    once, and its queue pays for it in the rounds that follow. Saved deficits do not count.
    """

    name = "share"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._begun: list[int] | None = None  # spent when the stretch began, less the overdrawn part
        self._weights: list[int] = []
        self._cost = world.scenario.options["cost"].name
        self._cost_max = 1 if self._cost == "1" else MESSAGE_BYTES_MAX

    def leading(self, lane: Lane) -> None:
        self._begun = None
        inbounds = lane.state.inbounds
        if len(inbounds) < 2 or self._cost == "measured":  # what a message costs is another number each time
            return
        turns: Any = lane._delivery._turns
        pick = turns.pick

        def watched() -> Inbound | None:
            self._look(inbounds)
            chosen: Inbound | None = pick()
            return chosen

        turns.pick = watched
        suspects: Any = lane.state.find(Suspects)
        alone = suspects._dispatch

        def out_of_turn(*arguments: Any) -> None:
            self._begun = None  # a suspect goes before everything else
            alone(*arguments)

        suspects._dispatch = out_of_turn

    def _look(self, inbounds: list[Inbound]) -> None:
        if any(not inbound.ring or inbound.head() is None for inbound in inbounds):
            self._begun = None
            return
        weights = [inbound.weight for inbound in inbounds]
        if self._begun is None or weights != self._weights:  # they were changed
            self._weights = weights
            self._begun = [inbound.spent - max(0, -inbound.deficit) for inbound in inbounds]
            return
        served = [i.spent - begun for i, begun in zip(inbounds, self._begun, strict=True)]
        rounds = [count / inbound.weight for count, inbound in zip(served, inbounds, strict=True)]
        batch_max = self.world.scenario.batch_max
        at_once = self._cost_max * (batch_max if self._cost_max == 1 else batch_max + 1)
        slack = 2 + max(at_once / inbound.weight for inbound in inbounds)
        if max(rounds) - min(rounds) > slack:
            self.violate(f"served {served} by weights {weights} while all had messages that could go")
