"""O-34: while a consumer has free capacity, no group waits for room at its owner for longer than it may.

Counted anew in each delivery pass, from groups and consumers. The bound is the time in which the lane moves
it, and that of all groups that wait with it: one look moves one group at least.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dispatcher.core.holds import HoldKind
from dispatcher.core.lane import Lane
from dispatcher.core.model import Consumer, ConsumerState, Group
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.world import World

#: Its owner has no room: its prefetch is full, or it is kept free for one message.
_NO_ROOM: Final = (HoldKind.PREFETCH_FULL, HoldKind.KEPT_FREE)
#: In times `steal_after`: until the lane has seen it for long enough, the time for which a group stays with
#: its new owner, and how often the lane looks.
_UNTIL_MOVED: Final = 1.5
_STAYS: Final = 4
_LOOKS: Final = 4
#: The wait of a group, at whom and behind what, and how many groups waited with it at most.
_Since = tuple[int, tuple[int, int, int], int]


class IndependenceChecker(Checker):
    """Keeps in mind since when groups wait."""

    name = "independence"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._after_ms = world.scenario.options["steal_after_ms"]
        self._since: dict[bytes, _Since] = {}
        self._lane: Lane | None = None
        self._looked_at_ms = 0

    def leading(self, lane: Lane) -> None:
        self._lane = lane
        self._since.clear()
        delivery: Any = lane._delivery
        run = delivery.run

        def watched() -> bool:
            idle: bool = run()
            if lane is self._lane and self._after_ms is not None and lane.state.policy.keeps_owner:
                self._look(lane, idle=idle)
            return idle

        delivery.run = watched

    def _look(self, lane: Lane, *, idle: bool) -> None:
        state = lane.state
        now_ms, asked_at_ms = state.now_ms, self._looked_at_ms
        self._looked_at_ms = now_ms
        is_late = now_ms - asked_at_ms > self._after_ms / _LOOKS  # its dispatcher stood still
        has_room = any(map(_takes_new, state.by_uuid.values()))
        if is_late or not idle or not has_room or state.reset_until is not None:
            self._since.clear()
            return
        former, self._since = self._since, {}
        waiting = list(_waiting(lane))
        for group in waiting:
            assert group.owner is not None
            handed = (group.owner.number, group.epoch, group.last_seq)
            since_ms, before, most = former.get(group.id, (now_ms, handed, 0))
            if before != handed:
                since_ms, most = now_ms, 0
            self._since[group.id] = since_ms, handed, max(most, len(waiting))
        for group_id, (since_ms, _, most) in self._since.items():
            if now_ms - since_ms > self._after_ms * (_UNTIL_MOVED + _STAYS + most / _LOOKS):
                self.violate(f"{group_id!r} waits for {now_ms - since_ms} ms, while others have room")


def _takes_new(consumer: Consumer) -> bool:
    """It has free capacity for groups that it does not own."""
    free = consumer.credit > 0 and consumer.alone_with is None
    return free and consumer.state is ConsumerState.LIVE and not consumer.drained


def _waiting(lane: Lane) -> Iterator[Group]:
    for group in lane.state.groups.values():
        owner = group.owner
        if owner is None or group.in_flight or group.pinned_to is not None or group.unresolved:
            continue
        if owner.credit > 0 and owner.alone_with is None:
            continue
        hold = lane.state.explanation.why(group)
        if hold is not None and hold.kind in _NO_ROOM:
            yield group
