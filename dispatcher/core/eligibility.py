"""Which messages may go now.

`is_suspended` decides about the whole lane, `held_by` about a backlog. `held_by` asks in this order: is one
message at a time the rule, what do operators say, which state is the group in, is its window full, may the
first message go in its turn. The first answer that is not None is the reason (`HoldKind`). Whether the
consumer that would get the message can receive now is `Consumer.may_receive`. The delivery pass and its lists
obey these answers, and `explanation` asks the same questions for operators.

Decisions change nothing. Who acts on one tells the feature that handles its cause (`LaneState.held_back`). A
feature adds its own causes when it is made, in one of four places; a lane without the feature doesn't ask:

- `lane_holds`    the whole lane
- `flag_holds`    groups with `flags`, which operators have set
- `new_checks`    first messages that were never handed over
- `retry_checks`  first messages that were

Messages that are tried alone, and parked ones, are asked for the lane and the group only. A backlog that is
listed is not asked again: who changes an answer, to hold or to let go, calls `LaneState.relist_backlogs`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dispatcher.core.holds import FlagHolds, HoldKind, LaneHolds
from dispatcher.core.model import FREE, OWNED, Group, GroupState, Original

HeadCheck = Callable[[Original], HoldKind | None]

_OF_GROUP_STATE: Final = {
    GroupState.RECOVERING: HoldKind.RECOVERING,
    GroupState.DRAINING: HoldKind.DRAINING,
    GroupState.BATCHED: HoldKind.BATCHED,
}


class Eligibility:
    """The decisions of one lane."""

    def __init__(self) -> None:
        self.one_at_a_time = False  # of each group one message is out at a time
        self.lane_holds = LaneHolds()
        self.flag_holds = FlagHolds()
        self.new_checks: list[HeadCheck] = []  # asked of messages that were never handed over
        self.retry_checks: list[HeadCheck] = []  # asked of messages that were

    # -- decisions --

    def is_suspended(self, now_ms: int) -> bool:
        """Nothing of the lane may go now."""
        return bool(self.lane_holds) and self.lane_holds.first(now_ms) is not None

    def held_by(self, group: Group, head: Original | None) -> HoldKind | None:
        """What keeps the first message of one of the group's backlogs from going in its turn; None: nothing.
        Pass None as `head` for a parked message: then only the group is asked."""
        if self.one_at_a_time and group.in_flight:
            return HoldKind.ONE_AT_A_TIME
        state = group.state
        if group.flags is not None or not (state is OWNED or state is FREE):
            kind = self.group_held_by(group)
            if kind is not None:
                return kind
        if group.in_flight >= group.window:
            return HoldKind.WINDOW_FULL
        return self.head_held_by(head) if head is not None and (head.attempt or self.new_checks) else None

    def group_held_by(self, group: Group) -> HoldKind | None:
        """What keeps the group from every consumer, however much of it is in flight."""
        kind = None if group.flags is None else self.flag_holds.first(group)
        return _OF_GROUP_STATE.get(group.state) if kind is None else kind

    def head_held_by(self, head: Original) -> HoldKind | None:
        """What keeps the first message of a backlog from going in its turn."""
        for check in self.retry_checks if head.attempt else self.new_checks:
            kind = check(head)
            if kind is not None:
                return kind
        return None
