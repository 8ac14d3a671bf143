"""Consumers with free capacity take groups over that wait only because their owner's prefetch is taken.

This is work stealing (Blumofe and Leiserson, 1999) with a whole group as the piece of work. Nothing of the
group may be out, so order and exclusion need no pause. Three rules keep groups from wandering. A group has to
wait for `steal_after` without a break, and at every look in that time a consumer must have free capacity.
One look moves no more groups than there is free capacity for, and `MOVED_PER_LOOK` at most. A group that was
taken over stays where it is for `STAYS` times `steal_after`. Where the look-ahead is full, so that groups
would be parked, they are moved without that wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from dispatcher.core.feature import Feature
from dispatcher.core.model import Consumer, Group, GroupState
from dispatcher.core.options import LaneOptions
from dispatcher.core.ownership import change_owner, drain
from dispatcher.core.state import LaneState
from dispatcher.wire.group_text import format_group

#: How often in `steal_after` the lane looks which groups wait.
LOOKS: Final = 4
#: How many groups change their owner at one look, at most.
MOVED_PER_LOOK: Final = 100
#: So many times `steal_after` a group stays with its new owner, at least.
STAYS: Final = 4
#: Of the groups with parked messages that wait for one consumer, one look sees at most this number.
PARKED_SEEN: Final = 10_000


class _Wait(NamedTuple):
    """A group that waits for its owner. `handed`: epoch and number of its last message; another one has gone
    in between if they differ."""

    since_ms: int
    handed: tuple[int, int]


class _Taken(NamedTuple):
    """A group that was taken over, and from whom."""

    at_ms: int
    former: str


class WorkStealing(Feature):
    """The groups of one lane that may change their owner, and since when."""

    @staticmethod
    def is_on(options: LaneOptions) -> bool:
        """Whether the lane has lasting owners, and settles that show which consumers have free capacity."""
        return options.steal_after_ms is not None and options.policy.keeps_owner and not options.handover

    def __init__(self, state: LaneState) -> None:
        assert state.options.steal_after_ms is not None
        self._state = state
        self._after_ms = state.options.steal_after_ms
        self._every_ms = max(1, self._after_ms // LOOKS)
        self._waits: dict[Group, _Wait] = {}
        self._taken: dict[Group, _Taken] = {}  # in the order of the times
        self._look_at_ms = 0
        state.signals.freeing.append(self._free)
        state.explanation.details.append(lambda group, _: self.details(group))

    def after_pass(self, *, idle: bool) -> bool:
        """See which groups still wait, and move those that have waited for long enough."""
        now_ms = self._state.now_ms
        if now_ms < self._look_at_ms or not (self._waits or self._has_both()):
            return False
        self._look_at_ms = now_ms + self._every_ms
        return self._look(until_ms=now_ms - self._after_ms)

    def _has_both(self) -> bool:
        """Some consumers of the lane can take something new, and others can't."""
        return 0 < len(self._state.pool) < len(self._state.by_uuid)

    def _free(self) -> bool:
        """Move groups that have waited for less time, too: else they would be parked."""
        return self._look(until_ms=self._state.now_ms)

    def _look(self, *, until_ms: int) -> bool:
        """See which groups wait, and move those whose wait began by `until_ms`. True: one has moved."""
        state = self._state
        if (
            state.eligibility.is_suspended(state.now_ms)
            or state.reset_until is not None
            or not self._has_both()
        ):
            self._waits.clear()
            return False
        self._forget_taken()
        self._waits = {group: self._wait_of(group) for group in self._waiting()}
        return self._steal(until_ms=until_ms)

    def _waiting(self) -> Iterator[Group]:
        """Groups that would go now if their owners had room. Those with something out stay where they are."""
        for owner in self._state.by_uuid.values():
            if not owner.receives or owner.may_receive:
                continue
            for group in self._waiting_for(owner):
                if not group.in_flight and group.state is GroupState.OWNED and self._would_go(group):
                    yield group

    def _waiting_for(self, owner: Consumer) -> dict[Group, None]:
        """Groups of this consumer that have a message for it: few of those that it owns."""
        listed = {backlog.group: None for source in owner.sources for backlog in source.backlogs}
        return listed | self._state.parking.groups_for(owner, PARKED_SEEN)

    def _would_go(self, group: Group) -> bool:
        """Nothing but its consumer holds it: it is listed, or its parked messages would be read."""
        if group.pinned_to is not None:
            return False
        if group.backlogs is not None:
            return any(backlog.listed_in is not None for backlog in group.backlogs.values())
        return self._state.parking.is_wanted(group)

    def _wait_of(self, group: Group) -> _Wait:
        handed = (group.epoch, group.last_seq)
        known = self._waits.get(group)
        return known if known is not None and known.handed == handed else _Wait(self._state.now_ms, handed)

    def _steal(self, *, until_ms: int) -> bool:
        """The groups that wait longest go to those that own the fewest, as new groups do."""
        state = self._state
        due = [
            (wait.since_ms, group) for group, wait in self._waits.items()
            if wait.since_ms <= until_ms and group not in self._taken
        ]  # fmt: skip
        due.sort(key=lambda each: each[0])
        room = {consumer: consumer.credit for consumer in state.pool}
        has_room = bool(room)
        for since_ms, group in due[:MOVED_PER_LOOK]:
            if not room:
                break
            taker = min(room, key=state.pool.level_of)
            room[taker] -= 1
            if not room[taker]:
                del room[taker]
            self._move(group, taker, since_ms)
        return has_room and bool(due)

    def _move(self, group: Group, taker: Consumer, since_ms: int) -> None:
        state, owner = self._state, group.owner
        assert owner is not None
        del self._waits[group]
        self._taken[group] = _Taken(state.now_ms, owner.id)
        drain(state, group, taker)
        change_owner(state, group)
        state.counters["groups_stolen"] += 1
        state.log_event(
            "group_stolen", group=format_group(group.id), consumer=taker.id, former=owner.id,
            waited_ms=state.now_ms - since_ms,
        )  # fmt: skip

    def _forget_taken(self) -> None:
        until_ms = self._state.now_ms - STAYS * self._after_ms
        while self._taken:
            group, taken = next(iter(self._taken.items()))
            if taken.at_ms > until_ms:
                return
            del self._taken[group]

    def next_deadline_ms(self) -> int | None:
        return self._look_at_ms if self._waits or self._has_both() else None

    def _still_waits(self, group: Group, wait: _Wait) -> bool:
        """What the latest look saw holds: it may be long ago, if no consumer had free capacity since."""
        owner = group.owner
        if group.in_flight or owner is None or not owner.receives or owner.may_receive:
            return False
        return (group.epoch, group.last_seq) == wait.handed and self._would_go(group)

    def details(self, group: Group) -> list[str]:
        """What `groups why` adds: it is about to change its owner, or has just done so."""
        now_ms, found = self._state.now_ms, []
        wait, taken = self._waits.get(group), self._taken.get(group)
        if wait is not None and group.owner is not None and self._still_waits(group, wait):
            found.append(
                f"waits for room at {group.owner.id} since {_seconds(now_ms - wait.since_ms)}; after "
                f"{_seconds(self._after_ms)} a consumer with free capacity takes it over"
            )
        if taken is not None and taken.at_ms > now_ms - STAYS * self._after_ms:
            found.append(
                f"taken over {_seconds(now_ms - taken.at_ms)} ago: it had waited for room at {taken.former}"
            )
        return found


def _seconds(ms: int) -> str:
    return f"{ms / 1000:g} s"
