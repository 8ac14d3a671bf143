"""R-9: on a cluster a lane goes on soon after something was done to a node.

It stands still while messages wait, no application has anything in hand, and none gets anything.
`liveness` allows 90 s, and begins when all faults are over.
"""

from __future__ import annotations

from typing import Final

from dispatcher.client.copies import Copy
from dispatcher.settings import QueueKind
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.life import Life
from dispatcher.sim.nodes import GIVEN_UP_MS, Cluster
from dispatcher.sim.world import World

#: How long a lane may stand still after which fault of a node. After a freeze the time comes to it in which
#: the others give the node up.
ALLOWED_MS: Final = {
    "kill_node": 15_000, "lose_node": 15_000, "stop_node": 10_000, "part_node": 15_000, "freeze_node": 15_000,
}  # fmt: skip
#: After these a node may go on apart from the others, unless it pauses, and a lane may be led through it.
PARTS: Final = ("freeze_node", "part_node")
#: How long a fault of a process or of Redis lasts, at most.
_OTHERS_MS: Final = 4_000
_LOOK_MS: Final = 100
#: Messages that RabbitMQ does not take again: they end connections, or stay here and may fill the look-ahead.
_HINDERING: Final = ("connection", "everywhere")


class GoingOnChecker(Checker):
    """Looks ten times a second, from the first time on that something is done to a node."""

    name = "going_on"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        scenario = world.scenario
        is_replicated = all(quorum for _, _, quorum in scenario.inbounds) and not scenario.hands_over
        self._is_replicated = is_replicated and scenario.options["queue_type"] is not QueueKind.CLASSIC
        self._refused = {plan.uid for plan in scenario.messages if plan.refused}  # nobody may take these
        self._hindering = {plan.uid for plan in scenario.messages if plan.refused in _HINDERING}
        self._fault = ""  # the latest one of a node
        self._still_since_ms = 0  # since when the lane has stood still, as far as that counts
        self._frozen_ms = 0  # how long a node has stood still after the latest fault
        self._waiting: Life | None = None  # a message that waited at the last look

    def struck(self, kind: str) -> None:
        now_ms = self.world.scheduler.now_ms
        if kind not in ALLOWED_MS:
            self._still_since_ms = max(self._still_since_ms, now_ms + _OTHERS_MS)
            return
        if not self._fault:
            self.world.scheduler.after(_LOOK_MS, self._look)
        self._fault, self._frozen_ms = kind, 0
        self._goes_on()

    def handed(self, life: Life, incarnation: str, copy: Copy) -> None:
        self._goes_on()

    def application_begins(self, life: Life, reader: str) -> None:
        self._goes_on()

    def _goes_on(self) -> None:
        self._still_since_ms = max(self._still_since_ms, self.world.scheduler.now_ms)

    def _look(self) -> None:
        world = self.world
        world.scheduler.after(_LOOK_MS, self._look)
        cluster = world.broker
        assert isinstance(cluster, Cluster)
        if any(node.frozen for node in cluster.nodes):
            self._frozen_ms = min(self._frozen_ms + _LOOK_MS, GIVEN_UP_MS[1])
        if self._is_excused(cluster) or not self._stands_still():
            self._goes_on()
            return
        still_ms = world.scheduler.now_ms - self._still_since_ms
        if still_ms > self._allowed_ms():
            self.violate(
                f"after {self._fault} the lane stands still for {still_ms} ms, {self._allowed_ms()} are "
                f"allowed: {self._waiting} waits"
            )

    def _allowed_ms(self) -> int:
        return ALLOWED_MS[self._fault] + self._frozen_ms

    def _is_excused(self, cluster: Cluster) -> bool:
        """Whether it may wait until all nodes see each other again, for a slow connection, or for the end of
        a message that costs each leader its connection, or that no queue takes."""
        may_be_apart = self._fault in PARTS and cluster.handling != "pause_minority"
        waits_for_node = (may_be_apart or not self._is_replicated) and cluster.hurt is not None
        is_slow = any(connection.up.slow_ms for connection in cluster.connections)
        lives = (self.world.history.lives.get(uid) for uid in self._hindering)
        return waits_for_node or is_slow or any(life is not None and not life.over for life in lives)

    def _stands_still(self) -> bool:
        if any(consumer.is_busy for consumer in self.world.consumers):
            return False
        if self._waiting is None or self.world.history.is_over(self._waiting):
            self._waiting = self.world.history.find_waiting(self._refused)
        return self._waiting is not None
