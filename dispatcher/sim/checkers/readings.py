"""X-4, X-6: what applications that only read a queue and ack begin with, in a hand-over lane.

A message may be begun more than once. The first time comes behind the first times of all that is before it
in its group and inbound queue; and nothing is begun again in a run without faults.
"""

from __future__ import annotations

import json

from dispatcher.core.effects import Snapshot
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.life import Life
from dispatcher.sim.reading_lanes import WITHOUT_ORDER
from dispatcher.sim.world import World


class ReadingsChecker(Checker):
    name = "readings"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._lines: dict[tuple[bytes, str], list[Life]] = {}
        self._first: dict[tuple[bytes, str], int] = {}  # of each line: all before it were begun
        self._begun: set[int] = set()
        self._excused: set[int] = set()
        self._has_order = WITHOUT_ORDER.isdisjoint(fault.kind for fault in world.scenario.faults)

    def stored(self, life: Life) -> None:
        group = self.world.ordered_group(life.group)
        if group is not None:
            self._lines.setdefault((group, life.inbound), []).append(life)

    def read(self, snapshot: Snapshot) -> None:
        if any(row.state == "taking" for row in snapshot.incarnations.values()):
            self.world.history.met["leads", "while a queue is read back"] += 1

    def _excuse(self, reader: str) -> None:
        """Excuse all messages if this reader's queue was being read back by a dispatcher that died (X-7)."""
        name = reader.partition(".")[0]
        for raw in self.world.redis.keys.incarnations.values():
            row = json.loads(raw)
            if row["state"] == "taking" and row["consumer"] == name:
                self.world.history.met["readings", "of what is read back"] += 1
                self._excused.update(self.world.history.lives)

    def application_begins(self, life: Life, reader: str) -> None:
        history = self.world.history
        self._excuse(reader)
        if life.uid in self._begun:
            history.met["readings", "repeated"] += 1
            if life.settled and not self.world.scenario.faults:
                self.violate(f"{reader} gets {life} again in a run without faults")
            return
        self._begun.add(life.uid)
        if life.purges and life.uid not in self._excused and not history.excused:
            self.violate(f"{reader} begins {life}, which an operator has taken out")
        group = self.world.ordered_group(life.group)
        if group is not None and self._has_order and life.uid not in self._excused:
            self._check_order(reader, life, (group, life.inbound))

    def _check_order(self, reader: str, life: Life, line: tuple[bytes, str]) -> None:
        lives, first = self._lines[line], self._first.get(line, 0)
        while first < len(lives) and self._is_begun(lives[first]):
            first += 1
        self._first[line] = first
        for earlier in lives[first:]:
            if earlier.place >= life.place:
                return
            if not self._is_begun(earlier):
                self.violate(f"{reader} begins {life} before {earlier}")
                return

    def _is_begun(self, life: Life) -> bool:
        return life.uid in self._begun or life.over or life.uid in self._excused
