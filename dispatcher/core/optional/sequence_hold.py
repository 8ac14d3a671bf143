"""Messages whose predecessor has not come wait for it, for a time (`sequence_check: hold`).

Messages that wait stay in their backlog, so all that is done with backlogs is done with them. A message that
comes late goes before those of its id that have larger numbers. A backlog whose head has a number that is not
due is in no source. The number that is due follows from the messages that were handed over
(`dispatcher.core.optional.sequence_numbers`), so a head is asked whenever it could be served. A message that
was handed over once is never held again, nor one that was parked.

So the messages of a group that were handed over need not be a prefix of its queue: the signal `overtaken`
says so. Backlogs that get messages of consumers back are sorted by `rank`, which follows the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.effects import Snapshot
from dispatcher.core.feature import Feature
from dispatcher.core.holds import Facts, HoldKind
from dispatcher.core.model import Backlog, Group, Original
from dispatcher.core.optional.sequence_numbers import SequenceNumbers, place_of
from dispatcher.core.state import LaneState


@dataclass(frozen=True, slots=True)
class NumberWait:
    """A group id waits for a number."""

    due: int
    until_ms: int


class SequenceHold(Feature):
    """Which group ids wait for which number."""

    def __init__(self, state: LaneState, sequences: SequenceNumbers, timeout_ms: int) -> None:
        self._state = state
        self._sequences = sequences
        self._timeout_ms = timeout_ms
        self._waits: dict[bytes, NumberWait] = {}  # by group id, the one that ends first in front
        self._given_up: dict[bytes, int] = {}  # numbers that are waited for no more
        self._is_late = False  # something may go that could not when this step's delivery ran
        sequences.is_watched = True
        state.insert = self.insert
        state.signals.dispatched.append(self.dispatched)
        state.signals.overtaken.append(lambda message: message.number is not None)
        state.signals.all_back.append(self.look_again)
        state.signals.resuming.append(self.give_up)
        state.eligibility.new_checks.append(self._held_by)
        state.explanation.facts[HoldKind.NUMBER_MISSING] = self._facts
        state.explanation.sentences[HoldKind.NUMBER_MISSING] = _sentence
        state.on_hold[HoldKind.NUMBER_MISSING] = self._begin_wait

    def load(self, snapshot: Snapshot) -> None:
        """Messages of a group that a former leader handed over rank as they were handed over, in whatever
        order they arrived; those without a consumer go first, when they have returned."""
        following: dict[tuple[int, bytes | None], Original] = {}
        handed = [message for message in self._state.absent.open_entries() if message.group_seq]
        for message in sorted(handed, key=_handed_over, reverse=True):
            line = message.inbound, message.group_id
            after = following.get(line)
            if after is not None and message.rank > after.rank:
                message.rank_override = _before(after.rank, message.group_seq)
            following[line] = message

    # -- what may go --

    def _held_by(self, head: Original) -> HoldKind | None:
        """A message that could go otherwise has to wait for one before it."""
        group_id, number = head.group_id, _place_unless_parked(head)
        if number is None or group_id is None:
            return None
        due = self._sequences.due(group_id)
        if due is None or self._given_up.get(group_id) == due:
            return None
        is_early = number > due or self._state.absent.go_before(group_id)
        return HoldKind.NUMBER_MISSING if is_early else None

    def _begin_wait(self, _: Group, head: Original) -> None:
        """The time begins in which the number that is due may still come, unless it has begun."""
        assert head.group_id is not None
        due = self._sequences.due(head.group_id)
        assert due is not None
        wait = self._waits.get(head.group_id)
        if wait is None or wait.due != due:
            self._waits.pop(head.group_id, None)
            self._waits[head.group_id] = NumberWait(due, self._state.now_ms + self._timeout_ms)
            self._state.counters["sequence_waits"] += 1

    def _facts(self, _: Group, head: Original | None) -> Facts:
        assert head is not None
        wait = self._waits.get(head.group_id or b"")
        until_ms = wait.until_ms if wait is not None else self._state.now_ms
        return {"number": self._sequences.due(head.group_id or b""), "left_ms": until_ms - self._state.now_ms}

    def dispatched(self, message: Original, group: Group | None) -> None:
        """Messages behind it may go, from another inbound queue too."""
        if group is None:
            return
        group_id = message.group_id
        assert group_id is not None
        self._sequences.handed_over(message)
        self._waits.pop(group_id, None)
        self._given_up.pop(group_id, None)
        if group.backlogs is not None and len(group.backlogs) > 1:
            for backlog in group.backlogs.values():
                self._state.list_backlog(backlog)

    def insert(self, backlog: Backlog, message: Original) -> None:
        """File a message before the waiting ones of its id that have larger numbers."""
        waiting, number = backlog.messages, _place_unless_parked(message)
        spot = len(waiting)
        if number is not None and self._sequences.waits_beside(message):
            for at in range(len(waiting) - 1, -1, -1):
                other = waiting[at]
                if other.group_id != message.group_id or (theirs := place_of(other)) is None:
                    continue
                if theirs <= number or other.attempt or other.is_parked:
                    break
                spot = at
        if spot == len(waiting):
            waiting.append(message)
            return
        message.rank_override = _before(waiting[spot].rank, number)
        waiting.insert(spot, message)
        backlog.leave()

    # -- numbers that are given up --

    def give_up(self, group: Group) -> bool:
        """An operator says that what the group waits for will not come; False: it waits for nothing."""
        ours = self._state.key_of
        ids = [group_id for group_id in self._waits if ours(group_id) == group.id]
        for group_id in ids:
            self._give_up(group_id)
        return bool(ids)

    def before_pass(self) -> None:
        """Let messages go that have waited long enough."""
        self._is_late = False
        while self._waits:
            group_id, wait = next(iter(self._waits.items()))
            if wait.until_ms > self._state.now_ms:
                return
            self._give_up(group_id)

    def _give_up(self, group_id: bytes) -> None:
        self._given_up[group_id] = self._waits.pop(group_id).due
        self.look_again(group_id)

    def finish_step(self) -> None:
        """Numbers that came to their end otherwise than by a hand-over may have been waited for."""
        for group_id in self._sequences.take_moved():
            wait = self._waits.get(group_id)
            if wait is not None and wait.due != self._sequences.due(group_id):
                del self._waits[group_id]
                self.look_again(group_id)
                self._is_late = True

    def look_again(self, group_id: bytes) -> None:
        """Something that its messages may have waited for has come, or will not come."""
        group = self._state.groups.get(self._state.key_of(group_id))
        if group is not None:
            self._state.relist_backlogs(group)

    def next_deadline_ms(self) -> int | None:
        """When something that waits may go."""
        if self._state.now_ms < self._state.lane_holds.suspended_until_ms:
            return None
        if self._is_late:
            return self._state.now_ms
        return next(iter(self._waits.values())).until_ms if self._waits else None


def _handed_over(message: Original) -> tuple[int, int, int]:
    """A message that goes out once more does so from the front: one that was out oftener comes first."""
    return -message.attempt, message.epoch, message.group_seq


def _place_unless_parked(message: Original) -> int | None:
    """As `place_of`; None for a parked message, too: it stays where it came."""
    return None if message.is_parked else place_of(message)


def _before(rank: tuple[int, ...], number: int | None) -> tuple[int, ...]:
    """A rank just before that one, and behind those that were put there with smaller numbers."""
    lane_epoch, tag, *later = rank
    return (lane_epoch, tag if later else tag - 1, number or 0)


def _sentence(facts: Facts) -> str:
    return (
        f"Its number {facts['number']} has not come: waits for it {facts['left_ms']} ms more at most, "
        "or until `dispatcher groups resume`."
    )
