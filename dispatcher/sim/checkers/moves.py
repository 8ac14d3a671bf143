"""O-28 to O-31: what an operation has sent elsewhere is there, in order, and is counted."""

from __future__ import annotations

import re
from typing import Any

from dispatcher.core.operations.operation import MOVE, REROUTE
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.checkers.order import may_go_before
from dispatcher.sim.life import Life
from dispatcher.sim.world import World

_WENT = re.compile(r"(\d+) of its messages went")


class MovesChecker(Checker):
    """Takes the committed results, and looks into the targets for them."""

    name = "moves"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._gone: dict[str, list[Life]] = {}  # by the operation's uuid, in the order of the commits
        self._done: set[str] = set()

    def left(self, life: Life, uuid: str) -> None:
        if uuid.startswith("groups.purge"):  # see the checker `operations`
            return
        self._gone.setdefault(uuid, []).append(life)
        if not any(copy.synced or not copy.persistent for copy in life.moved):  # it stays transient if it was
            self.violate(f"{uuid} counts it, and its target does not have it: {life}")

    def operated(self, uuid: str, result: dict[str, Any]) -> None:
        gone, failed = len(self._gone.get(uuid, ())), result.get("error")
        if uuid in self._done or self.world.history.excused:
            return
        if failed is not None:
            self._done.add(uuid)
            went = _WENT.search(failed)
            if gone != (int(went[1]) if went else 0):
                self.violate(f"{uuid} says {failed!r}, and {gone} have gone")
        elif result.get("operation") in (MOVE, REROUTE):
            self._done.add(uuid)
            if result["applied"] and result["messages"] != gone:
                self.violate(f"{uuid} says {result}, and {gone} have gone")

    def at_end(self) -> None:
        """Copies may be there twice: the last ones are in order."""
        holds, excused = self.world.scenario.holds, self.world.history.excused
        for uuid, gone in self._gone.items():
            last: dict[str, Life] = {}
            # A message that was handed over may have come back when newer ones had gone.
            known = [life for life in gone if life.twins == 1 and life.moved and not life.starts]
            for life in sorted(known, key=lambda life: max(life.moved.values())):
                before = last.get(life.inbound)
                if (
                    before is not None
                    and before.place > life.place
                    and not (excused or (holds and may_go_before(before, life)))
                ):
                    self.violate(f"{uuid} has sent this: {life} behind a later one: {before}")
                last[life.inbound] = life
