"""Which messages may go now: decided here only.

Three questions, from the widest to the narrowest: does something hold the whole lane; does something hold the
group; may its first message go in its turn. The first answer that is not None is the reason (`HoldKind`).
Whether the consumer that would get it can receive now is `Consumer.may_receive`. The delivery pass and its
lists obey these answers, and `explanation` renders the same ones for operators.

Decisions change nothing. Who acts on one tells its owner (`LaneState.list_backlog`). A capability adds its
own causes when it is made: a check of groups that operators have flagged, or of first messages. A lane
without the capability doesn't ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dispatcher.core.holds import FLAG_HOLDS, HoldKind, LaneHolds
from dispatcher.core.model import FREE, OWNED, Group, GroupState, Original

GroupCheck = Callable[[Group], bool]
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
        self.flag_checks: dict[HoldKind, GroupCheck] = {}  # asked of groups with flags
        self.new_checks: list[HeadCheck] = []  # asked of messages that were never handed over
        self.retry_checks: list[HeadCheck] = []  # asked of messages that were

    # -- decisions --

    def is_suspended(self, now_ms: int) -> bool:
        """Nothing of the lane may go now."""
        return bool(self.lane_holds) and self.lane_holds.first(now_ms) is not None

    def held_by(self, group: Group, head: Original | None) -> HoldKind | None:
        """What keeps the first message of one of the group's backlogs from going in its turn; None: it is
        parked."""
        if self.one_at_a_time and group.in_flight:
            return HoldKind.ONE_AT_A_TIME
        state = group.state
        if group.flags is not None or not (state is OWNED or state is FREE):
            kind = self.kept_back_by(group)
            if kind is not None:
                return kind
        if group.in_flight >= group.window:
            return HoldKind.WINDOW_FULL
        return self.head_held_by(head) if head is not None and (head.attempt or self.new_checks) else None

    def kept_back_by(self, group: Group) -> HoldKind | None:
        """What keeps the group from every consumer, whatever is out of it."""
        if group.flags is not None:
            kind = self.flag_held_by(group)
            if kind is not None:
                return kind
        return _OF_GROUP_STATE.get(group.state)

    def flag_held_by(self, group: Group) -> HoldKind | None:
        """What operators have said that keeps the group back, and messages of it that will come."""
        checks = self.flag_checks
        return next((kind for kind in FLAG_HOLDS if kind in checks and checks[kind](group)), None)

    def head_held_by(self, head: Original) -> HoldKind | None:
        """What keeps the first message of a backlog from going in its turn."""
        for check in self.retry_checks if head.attempt else self.new_checks:
            kind = check(head)
            if kind is not None:
                return kind
        return None
