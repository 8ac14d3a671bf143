"""The flags of operators hold: nothing goes out in a paused lane, of a paused group or to a drained consumer,
and a pinned group goes to its consumer only. A stopped group waits for a decision, and goes on with the
message at which it had stopped."""

from __future__ import annotations

from typing import Any

from dispatcher.core.effects import Snapshot
from dispatcher.core.operators.flag_commands import CONSUMER, LANE
from dispatcher.core.operators.flags import GROUP
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.facts import DispatchFact
from dispatcher.sim.life import Life
from dispatcher.sim.world import World


class SaidChecker(Checker):
    """Looks at flags and hand-overs as they are committed."""

    name = "said"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._flags: dict[bytes, dict[str, Any]] = {}
        self._newest_epoch = 0
        self._latest: dict[bytes, tuple[Life, str]] = {}  # by group: the last hand-over, and to whom
        self._stopped_at: dict[bytes, Life] = {}
        self._goes_on_with: dict[bytes, Life] = {}

    def led(self, lane_epoch: int) -> None:
        self._newest_epoch = lane_epoch

    def read(self, snapshot: Snapshot) -> None:
        """Redis may have lost the latest flags. What a leader read before its successor came is old."""
        if snapshot.lane_epoch == self._newest_epoch:
            self._flags = dict(snapshot.operator_rows)
        if not snapshot.complete:
            self._latest.clear()
            self._stopped_at.clear()
            self._goes_on_with.clear()

    def flagged(self, key: bytes, row: dict[str, Any] | None) -> None:
        if row is None:
            self._flags.pop(key, None)
        else:
            self._flags[key] = row
        if key.startswith(GROUP):
            self._stopped(key.removeprefix(GROUP), is_stopped="stopped" in (row or {}))

    def _stopped(self, group: bytes, *, is_stopped: bool) -> None:
        if is_stopped and group not in self._stopped_at and group in self._latest:
            self._stopped_at[group] = self._latest[group][0]
        elif not is_stopped and group in self._stopped_at:
            self._goes_on_with[group] = self._stopped_at.pop(group)
            self.world.history.met["operator", "decided about a stopped group"] += 1

    def dispatched(self, life: Life, to: DispatchFact) -> None:
        if LANE in self._flags:
            self.violate(f"{to} is handed over while the lane is paused: {life}")
        if CONSUMER + to.consumer.encode() in self._flags:
            self.violate(f"{to} is handed over to a drained consumer: {life}")
        if to.group is None:
            return
        row = self._flags.get(GROUP + to.group, {})
        if "stopped" in row:
            self.violate(f"{to} is handed over while its group has stopped: {life}")
        if self.world.scenario.stops_failed:
            self._in_turn(life, to, to.group)
        if row.get("paused"):
            self.violate(f"{to} is handed over while its group is paused: {life}")
        if row.get("pin", to.consumer) != to.consumer:
            self.violate(f"{to} is handed over although its group is pinned to {row['pin']}: {life}")

    def _in_turn(self, life: Life, to: DispatchFact, group: bytes) -> None:
        """One message of a group at a time, and first the one at which it had stopped."""
        due = self._goes_on_with.pop(group, life)
        if due is not life and due.inbound == life.inbound and not self._is_over(due):
            self.violate(
                f"{to} is handed over before the message at which its group had stopped: {life}, {due}"
            )
        latest, holder = self._latest.get(group, (life, ""))
        is_out = latest is not life and not (self._is_over(latest) or latest.is_let_go_by(holder))
        if is_out and holder not in self.world.history.taken:
            self.violate(f"{to} is handed over beside another one of its group: {life}, {latest}")
        self._latest[group] = life, to.incarnation

    def _is_over(self, life: Life) -> bool:
        """Whether the message has ended, or that can't be told, as with equal messages."""
        history = self.world.history
        unclear = life.twins > 1 or life.uid in history.excused or not history.complete
        return unclear or life.over or life.given_up or life.expires
