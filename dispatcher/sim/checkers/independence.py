"""O-34, W-1 and W-3: what the trouble of some groups costs the others.

While a consumer has free capacity, no group waits for room at its owner for longer than it may: the time in
which the lane moves it, and that of all groups that wait with it if they are more than there are places; one
look moves one group at least. A group that has just moved waits until it may move again. A group that stands
still does not keep its window, and one that is settled quickly does not wait at a window that stays as it is.

Counted anew after each delivery pass, from groups and consumers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.holds import HoldKind
from dispatcher.core.lane import Lane
from dispatcher.core.model import Consumer, Group, Original
from dispatcher.core.optional.group_window import GroupWindows
from dispatcher.core.optional.work_stealing import WorkStealing
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.world import World

#: Its owner has no room: its prefetch is full, or it is kept free for one message.
_NO_ROOM: Final = (HoldKind.PREFETCH_FULL, HoldKind.KEPT_FREE)
#: So often in `steal_after` the lane looks who waits. A group moves at the look that is `steal_after` after
#: the one that saw it first, and stays with its new owner for so many times `steal_after`.
_LOOKS: Final = 4
_STAYS: Final = 4
#: The service steps the core at least so often, and not always when the core asks for it.
_TICK_MS: Final = 100
#: So many groups move at one look, at most.
_AT_ONCE: Final = 100
#: A group stands still when nothing of it was settled for so many times as long as ever before, and for so
#: long. A leader can't know how long RabbitMQ and Redis take any better than twice the slowest way so far.
_TIMES: Final = 4
_STILL_MS_MIN: Final = 1_000
#: What was out for no longer is settled quickly, whatever is usual for its group.
_QUICK_MS: Final = 100
#: A full window grows at least once in a round, which is as many messages as it lets out.
_ROUNDS: Final = 2


class _Wait(NamedTuple):
    """Of a group for room at its owner."""

    since_ms: int
    handed: tuple[int, int, int]  # at whom, and behind what
    most: int  # groups that waited with it, when they were more than there were places


class _Pace(NamedTuple):
    """How a group is settled, while something of it is out."""

    settled: tuple[int, int]  # epoch, and how many of it
    since_ms: int
    longest_ms: int  # between two settles
    is_full: bool = False  # its window was seen to be full after that time; it is given the time once more


@dataclass(slots=True)
class _Full:
    """A window that has let nothing more out at any look since then, and has not changed."""

    since_ms: int
    window: int
    quick: int = 0  # messages that were handed over since then, and settled quickly


class IndependenceChecker(Checker):
    """Keeps in mind since when groups wait, when they moved, and how they are settled."""

    name = "independence"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._after_ms = world.scenario.options["steal_after_ms"]
        #: A step that comes later than this after the one before waited for Redis; the lane asks for a step
        #: at each look.
        self._step_ms = min(_TICK_MS, 2 * (self._after_ms or 0) // _LOOKS)
        self._waits: dict[bytes, _Wait] = {}
        self._owners: dict[bytes, Consumer] = {}
        self._moved_at_ms: dict[bytes, int] = {}
        self._paces: dict[bytes, _Pace] = {}
        self._full: dict[bytes, _Full] = {}
        self._still_ms = _STILL_MS_MIN + 2 * _TIMES * max(world.scenario.redis_ms)
        self._lane: Lane | None = None
        self._looked_at_ms = 0

    def leading(self, lane: Lane) -> None:
        self._lane = lane
        for known in (self._waits, self._owners, self._moved_at_ms, self._paces, self._full):
            known.clear()
        delivery: Any = lane._delivery
        run = delivery.run
        steals = WorkStealing.is_on(lane.state.options)
        adapts = GroupWindows.are_adapted(lane.state.options)

        def watched() -> bool:
            idle: bool = run()
            if lane is self._lane and steals:
                self._look_at_owners(lane)
                self._look(lane)
            if lane is self._lane and adapts:
                self._look_at_windows(lane)
                self._look_at_full_windows(lane)
            return idle

        delivery.run = watched
        if adapts:
            lane.state.signals.settling.append(lambda _, messages: self._settled(lane, messages))

    def _look_at_owners(self, lane: Lane) -> None:
        """A group whose owner could have kept it has moved."""
        former, self._owners = self._owners, {}
        for group in lane.state.groups.values():
            if group.owner is not None:
                before = former.get(group.id)
                if before is not None and before is not group.owner and before.stays:
                    self._moved_at_ms[group.id] = lane.state.now_ms
                self._owners[group.id] = group.owner

    def _look(self, lane: Lane) -> None:
        state = lane.state
        now_ms, asked_at_ms = state.now_ms, self._looked_at_ms
        self._looked_at_ms = now_ms
        stood_still_ms = max(0, now_ms - asked_at_ms - self._step_ms)  # its dispatcher waited for Redis
        room = sum(consumer.credit for consumer in state.by_uuid.values() if _takes_new(consumer))
        if not room or state.reset_until is not None:
            self._waits.clear()
            return
        former, self._waits = self._waits, {}
        waiting = list(_waiting(lane))
        crowd = len(waiting) if len(waiting) > min(room, _AT_ONCE) else 0
        for group in waiting:
            assert group.owner is not None
            handed = (group.owner.number, group.epoch, group.last_seq)
            wait = former.get(group.id)
            if wait is None or wait.handed != handed:
                wait = _Wait(now_ms, handed, 0)
            else:
                wait = wait._replace(since_ms=wait.since_ms + stood_still_ms)
            self._waits[group.id] = wait._replace(most=max(wait.most, crowd))
        for group_id, wait in self._waits.items():
            if now_ms > self._until_ms(group_id, wait):
                waits_ms = now_ms - wait.since_ms
                self.violate(f"{group_id!r} waits for {waits_ms} ms, while others have room")

    def _until_ms(self, group_id: bytes, wait: _Wait) -> float:
        """Until when it may wait."""
        moved_at_ms = self._moved_at_ms.get(group_id, 0)
        look_ms = self._after_ms / _LOOKS
        looks_ms = (_LOOKS + 1) * (look_ms + min(look_ms, _TICK_MS))  # each look may be a tick late
        first_ms = max(wait.since_ms, moved_at_ms + _STAYS * self._after_ms - self._after_ms)
        return float(first_ms + looks_ms + look_ms + wait.most * (look_ms + min(look_ms, _TICK_MS)))

    def _look_at_windows(self, lane: Lane) -> None:
        state, former = lane.state, self._paces
        now_ms, self._paces = state.now_ms, {}
        if not state.keys_are_ids:
            return  # the numbers of a bucket's messages count for each id, and do not tell what was settled
        for group in state.groups.values():
            settled = (group.epoch, group.last_seq - group.in_flight)
            pace = former.get(group.id) or _Pace(settled, now_ms, 0)
            if not group.in_flight:  # the leader knows its usual time still
                if group.id in former:
                    self._paces[group.id] = pace._replace(settled=settled, since_ms=now_ms, is_full=False)
                continue
            out_ms = now_ms - pace.since_ms
            if pace.settled != settled:
                pace = _Pace(settled, now_ms, max(pace.longest_ms, out_ms))
            elif group.window > 1 and out_ms > _TIMES * pace.longest_ms + self._still_ms:
                hold = state.explanation.why(group)
                if hold is not None and hold.kind is HoldKind.WINDOW_FULL and not pace.is_full:
                    pace = pace._replace(since_ms=now_ms, is_full=True)
                elif hold is not None and hold.kind is HoldKind.WINDOW_FULL:
                    self.violate(f"{group.id!r} stands still for {out_ms} ms with a window of {group.window}")
            self._paces[group.id] = pace

    def _look_at_full_windows(self, lane: Lane) -> None:
        state, former = lane.state, self._full
        window, self._full = state.options.group_window, {}
        most = None if window is None else window.most
        for group in state.groups.values():
            if group.in_flight < group.window or (most is not None and group.window >= most):
                continue
            hold = state.explanation.why(group)
            if hold is None or hold.kind is not HoldKind.WINDOW_FULL:
                continue
            full = former.get(group.id)
            if full is None or full.window != group.window:
                full = _Full(state.now_ms, group.window)
            self._full[group.id] = full

    def _settled(self, lane: Lane, messages: list[Original]) -> None:
        """These messages are settled, perhaps the last ones of their groups that were out: a look finds
        nothing of those. What was not quick may shrink the window of its group."""
        if lane is not self._lane:
            return
        now_ms = lane.state.now_ms
        for message in messages:
            group = message.group
            if group is None:
                continue
            pace, full = self._paces.get(group.id), self._full.get(group.id)
            if pace is not None:
                longest_ms = max(pace.longest_ms, now_ms - pace.since_ms)
                self._paces[group.id] = pace._replace(longest_ms=longest_ms)
            if full is None:
                continue
            if now_ms - message.dispatched_at_ms > _QUICK_MS:
                del self._full[group.id]
            elif message.dispatched_at_ms >= full.since_ms:
                full.quick += 1
                if full.quick > _ROUNDS * full.window and group.window == full.window:
                    self.violate(f"{group.id!r} is quick, and its window of {full.window} does not grow")


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
