"""What operators have said holds: what is paused, pinned or drained gets nothing that it must not get."""

from __future__ import annotations

from typing import Any

from dispatcher.core.effects import Snapshot
from dispatcher.core.flags import CONSUMER, GROUP, LANE
from dispatcher.sim.checkers import Checker, HandOver
from dispatcher.sim.history import Life
from dispatcher.sim.world import World


class Said(Checker):
    """Looks at flags and hand-overs as they are committed."""

    name = "said"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._flags: dict[bytes, dict[str, Any]] = {}
        self._newest_epoch = 0

    def led(self, lane_epoch: int) -> None:
        self._newest_epoch = lane_epoch

    def read(self, snapshot: Snapshot) -> None:
        """Redis may have lost what was said last. What a leader read before its successor came is old."""
        if snapshot.lane_epoch == self._newest_epoch:
            self._flags = dict(snapshot.flags)

    def flagged(self, key: bytes, row: dict[str, Any] | None) -> None:
        if row is None:
            self._flags.pop(key, None)
        else:
            self._flags[key] = row

    def dispatched(self, life: Life, to: HandOver) -> None:
        if LANE in self._flags:
            self.violate(f"{to} is handed over while the lane is paused: {life}")
        if CONSUMER + to.consumer.encode() in self._flags:
            self.violate(f"{to} is handed over to a drained consumer: {life}")
        if to.group is None:
            return
        row = self._flags.get(GROUP + to.group, {})
        if row.get("paused"):
            self.violate(f"{to} is handed over while its group is paused: {life}")
        if row.get("pin", to.consumer) != to.consumer:
            self.violate(f"{to} is handed over although its group is pinned to {row['pin']}: {life}")
