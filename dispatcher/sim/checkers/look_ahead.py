"""G-5, P-1a: a look-ahead that is full of messages that can't go is emptied into parking queues, and one of
which too much waits for groups that stand still leaves these messages there.

Counted from the world's clock and the numbers of the inbound queue. Why a message can't go, and whether there
is a parking queue for it, is read in the core.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dispatcher.core.effects import Effects
from dispatcher.core.events import Event
from dispatcher.core.inbound import Inbound
from dispatcher.core.lane import Lane
from dispatcher.core.model import Group
from dispatcher.core.parking.policy import STANDING_PART, Parking
from dispatcher.core.queue_ids import parking_id
from dispatcher.core.waiting import waits_here
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.world import World

#: RabbitMQ may lose what it gets in the first 3 s of a queue on a classic queue: it is not used before.
_OPENING_MS: Final = 3_000
#: A full look-ahead is blocked after 20 ms, and what can't be parked at once is tried again after 100 ms.
_BLOCKED_MS: Final = 20
_RETRY_MS: Final = 100
#: The service steps the core at least so often. A longer pause is that of its process, or of Redis.
_TICK_MS: Final = 100


class _Full(NamedTuple):
    """Messages that can't go, while a consumer has free capacity."""

    parked: int  # groups that were parked before
    ms: int  # for how long, without pauses


class LookAheadChecker(Checker):
    """Keeps in mind for how long a look-ahead has been full, and nothing was parked."""

    name = "look_ahead"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        slow_ms = max(world.scenario.redis_ms)
        self._most_ms = _OPENING_MS + _BLOCKED_MS + _RETRY_MS + 4 * (_TICK_MS + slow_ms)
        #: To find out that a parking queue can't be used takes time of its own.
        self._off = any(fault.kind == "lose_leader" for fault in world.scenario.faults)
        self._off |= bool(world.scenario.partitions)  # nodes of the cluster stand still
        self._lane: Lane | None = None
        self._full: dict[str, _Full] = {}  # by what is too long so
        self._stepped_at_ms = 0

    def leading(self, lane: Lane) -> None:
        self._lane = lane
        self._full.clear()

    def decided(self, process: str, events: list[Event], effects: Effects) -> None:
        lane, now_ms = self._lane, self.world.scheduler.now_ms
        if self._off or lane is None or process != self.world.history.leader:
            return
        since_ms = min(now_ms - self._stepped_at_ms, _TICK_MS)
        self._stepped_at_ms = now_ms
        state = lane.state
        waits = (
            state.lane_holds.publishers_blocked
            or state.eligibility.is_suspended(state.now_ms)
            or not state.pool
        )
        for inbound in state.inbounds:
            full = not waits and inbound.is_full() and _could_be_parked(lane, inbound)
            self._look(f"the look-ahead of {inbound.name} is full of blocked messages", bool(full), since_ms)
            standing = 0 if waits else _could_be_parked(lane, inbound, standing=True)
            crowded = standing * STANDING_PART > state.options.look_ahead
            self._look(f"{inbound.name}: too much waits for groups that stand still", crowded, since_ms)

    def _look(self, what: str, is_true: bool, since_ms: int) -> None:
        """It is true, or not, at the end of these milliseconds."""
        assert self._lane is not None
        if not is_true:
            self._full.pop(what, None)
            return
        parked, before = self._lane.state.counters["groups_parked"], self._full.get(what)
        ms = before.ms + since_ms if before is not None and before.parked == parked else 0
        self._full[what] = _Full(parked, ms)
        if ms > self._most_ms:
            self.violate(f"{what} for {ms} ms")


def _could_be_parked(lane: Lane, inbound: Inbound, *, standing: bool = False) -> int:
    """The messages of groups that may be parked, or only of those that stand still. None while the last
    parking queue is in use: that one is behind all others, so any group may go there. None either while its
    name rests."""
    state = lane.state
    names = state.options.parking_queues
    last = parking_id(len(names) - 1)
    if not names or last in state.parking or state.parking.rests(last, state.now_ms):
        return 0
    return sum(
        sum(waits_here(m) and not m.is_parked for m in backlog.messages)
        for group in state.groups.values()
        if _may_be_parked(lane, group) and (not standing or _stands_still(lane, group))
        for backlog in [(group.backlogs or {}).get(inbound.index)] if backlog is not None
    )  # fmt: skip


def _stands_still(lane: Lane, group: Group) -> bool:
    return any(stands_still(group) for stands_still in lane.state.signals.stands_still)


def _may_be_parked(lane: Lane, group: Group) -> bool:
    """It is neither recovered, nor moved elsewhere, nor about to go."""
    parking = lane.state.find(Parking)
    assert parking is not None
    is_busy = parking._reading.is_busy(group)
    return not is_busy and not any(goes_soon(group) for goes_soon in lane.state.signals.goes_soon)
