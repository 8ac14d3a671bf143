"""What may go now: decided here only, and explained by the same decision.

Four questions, from the widest to the narrowest: does something hold the whole lane; does something hold the
group; may its first message go in its turn; can the consumer that would get it receive now. The first answer
that is not None is the reason (`HoldKind`). The delivery pass and its lists obey these answers; `groups why`
renders the same ones as a `Hold`, which also has the facts.

Decisions change nothing. Who acts on one tells its owner (`LaneState.list_backlog`).

A capability adds its own causes when it is made: a check of groups that operators have flagged, a check of
first messages, and how to collect the facts. A lane without the capability doesn't ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol

from dispatcher.core.holds import Facts, Hold, HoldKind, LaneHolds
from dispatcher.core.model import (
    FREE,
    OWNED,
    WAITING,
    Backlog,
    Consumer,
    ConsumerState,
    Group,
    GroupState,
    Message,
)
from dispatcher.core.placement import Pool

GroupCheck = Callable[[Group], HoldKind | None]
HeadCheck = Callable[[Message], HoldKind | None]

_OF_GROUP_STATE: Final = {
    GroupState.RECOVERING: HoldKind.RECOVERING,
    GroupState.DRAINING: HoldKind.DRAINING,
    GroupState.BATCHED: HoldKind.BATCHED,
}
_OF_CONSUMER_STATE: Final = {
    ConsumerState.EXPECTED: HoldKind.UNHEARD,
    ConsumerState.REFUSING: HoldKind.QUEUE_FULL,
    ConsumerState.LEAVING: HoldKind.LEAVING,
    ConsumerState.LOST: HoldKind.LOST,
    ConsumerState.MARKED: HoldKind.LOST,
    ConsumerState.REVOKED: HoldKind.LOST,
}
#: They end when the group's consumer does something: what keeps it from that is the better answer.
_UP_TO_CONSUMER: Final = (HoldKind.ONE_AT_A_TIME, HoldKind.DRAINING, HoldKind.BATCHED, HoldKind.SUSPECT)


class LaneFacts(Protocol):
    """What decisions need to know of a lane; LaneState is one."""

    now_ms: int
    pool: Pool
    by_uuid: dict[str, Consumer]

    @property
    def window_is_full(self) -> bool: ...


class Eligibility:
    """The decisions of one lane."""

    def __init__(self, lane: LaneFacts, *, one_at_a_time: bool, suspect_after: int) -> None:
        self._lane = lane
        self._one_at_a_time = one_at_a_time  # of each group one message is out at a time
        #: What keeps all of a group from every consumer now.
        self.group_held_by: GroupCheck = self._held_while_out if one_at_a_time else self.kept_back_by
        self.suspect_after = suspect_after  # with so many hand-overs behind it a message is tried alone
        self.lane_holds = LaneHolds()
        self.flag_checks: list[GroupCheck] = []  # asked of groups with flags only
        self.head_checks: list[HeadCheck] = []
        #: Where messages of a group are that are not here, for those of which nothing is here.
        self.elsewhere: list[Callable[[Group], Hold | None]] = []
        self.facts: dict[HoldKind, Callable[[Group, Message | None], Facts]] = {
            HoldKind.ONE_AT_A_TIME: _out,
            HoldKind.RECOVERING: lambda group, _: {"unresolved": group.unresolved},
            HoldKind.DRAINING: _out,
            HoldKind.BATCHED: _out,
            HoldKind.SUSPECT: self._suspect,
        }

    # -- decisions --

    @property
    def is_suspended(self) -> bool:
        """Nothing of the lane may go now."""
        return bool(self.lane_holds) and self.lane_holds.first(self._lane.now_ms) is not None

    def held_by(self, group: Group, head: Message) -> HoldKind | None:
        """What keeps the first message of one of the group's backlogs from going in its turn."""
        is_plain = group.flags is None and not self._one_at_a_time  # then its state alone decides
        state = group.state
        if not is_plain or not (state is OWNED or state is FREE):
            kind = self.group_held_by(group)
            if kind is not None:
                return kind
        return self.head_held_by(head) if head.attempt or self.head_checks else None

    def kept_back_by(self, group: Group) -> HoldKind | None:
        """What keeps the group from every consumer, whatever is out of it."""
        if group.flags is not None:
            for flag_check in self.flag_checks:
                kind = flag_check(group)
                if kind is not None:
                    return kind
        state = group.state
        if state is OWNED or state is FREE:
            return None
        return _OF_GROUP_STATE[state]

    def _held_while_out(self, group: Group) -> HoldKind | None:
        return HoldKind.ONE_AT_A_TIME if group.in_flight else self.kept_back_by(group)

    def head_held_by(self, head: Message) -> HoldKind | None:
        """What keeps the first message of a backlog from going in its turn."""
        if head.attempt >= self.suspect_after:
            return HoldKind.SUSPECT
        for head_check in self.head_checks:
            kind = head_check(head)
            if kind is not None:
                return kind
        return None

    # -- explanations --

    def lane_hold(self) -> Hold | None:
        """What holds the whole lane now."""
        holds, now_ms = self.lane_holds, self._lane.now_ms
        kind = holds.first(now_ms)
        if kind is not None:
            return Hold(kind, partial(holds.facts, kind, now_ms))
        return Hold(HoldKind.UNCONFIRMED, dict) if self._lane.window_is_full else None

    def why(self, group: Group) -> Hold | None:
        """Why the group waits; None: it goes with the next step, or nothing of it waits."""
        heads = list(waiting_heads(group))
        parked = None
        if not heads and not group.unresolved:
            parked = next((hold for look in self.elsewhere if (hold := look(group)) is not None), None)
            if parked is None:
                return None
        lane_hold = self.lane_hold()
        if lane_hold is not None:
            return lane_hold
        if not heads:
            return self._hold_on(group, None, self.group_held_by(group)) or parked
        found = [self._hold_on(backlog.group, head, self._held_by(backlog, head)) for backlog, head in heads]
        return None if None in found else found[0]

    def _held_by(self, backlog: Backlog, head: Message) -> HoldKind | None:
        """What is listed may be served: nothing holds it but those who would get it."""
        if backlog.listed_in is not None:
            return None
        return self.group_held_by(backlog.group) or self.head_held_by(head)

    def _hold_on(self, group: Group, head: Message | None, kind: HoldKind | None) -> Hold | None:
        taker = group.taker
        if kind is None and taker is None:
            return None if self._lane.pool else Hold(_nobody(self._lane), partial(_capacity, self._lane))
        if taker is not None and (kind is None or (kind in _UP_TO_CONSUMER and not taker.receives)):
            return consumer_hold(taker, group)
        assert kind is not None
        return Hold(kind, partial(self.facts[kind], group, head))

    def _suspect(self, _: Group, head: Message | None) -> Facts:
        assert head is not None
        kept = [c.id for c in self._lane.by_uuid.values() if c.alone_with is head]
        return {
            "attempt": head.attempt, "consumer": kept[0] if kept else None,
            "failed": self._one_at_a_time,  # some of these may have been failures, of which it was released
        }  # fmt: skip


def consumer_held_by(consumer: Consumer) -> HoldKind | None:
    """What keeps this consumer from the next message of a group that is its own."""
    if consumer.may_receive:
        return None
    if consumer.receives:
        return HoldKind.KEPT_FREE if consumer.alone_with is not None else HoldKind.PREFETCH_FULL
    kind = _OF_CONSUMER_STATE[consumer.state]
    if consumer.depth is not None:
        return HoldKind.QUEUE_UNREAD if kind is HoldKind.LOST or kind is HoldKind.LEAVING else kind
    return HoldKind.EVICTED if consumer.evicted_by is not None else kind


def consumer_hold(consumer: Consumer, group: Group) -> Hold | None:
    """The same, with the facts. The group is its own, or pinned to it."""
    kind = consumer_held_by(consumer)
    return (
        None if kind is None else Hold(kind, partial(_consumer, consumer, is_owner=group.owner is consumer))
    )


def waiting_heads(group: Group) -> Iterator[tuple[Backlog, Message]]:
    """The first message that waits in each backlog of the group. Changes nothing, as `Backlog.head` does."""
    for backlog in (group.backlogs or {}).values():
        for message in backlog.messages:
            if message.state is WAITING:
                yield backlog, message
                break


def _out(group: Group, _: Message | None) -> Facts:
    return {
        "in_flight": group.in_flight,
        "consumer": group.owner.id if group.owner is not None else None,
        "target": group.target.id if group.target is not None else None,
    }


def _consumer(consumer: Consumer, *, is_owner: bool) -> Facts:
    return {
        "consumer": consumer.id, "is_owner": is_owner, "state": consumer.state.value,
        "prefetch": consumer.prefetch, "in_flight": len(consumer.in_flight),
        "queue": consumer.queue, "queued": consumer.depth, "read_back": consumer.reclaiming,
    }  # fmt: skip


def _nobody(lane: LaneFacts) -> HoldKind:
    return HoldKind.NO_CAPACITY if lane.by_uuid else HoldKind.NO_CONSUMER


def _capacity(lane: LaneFacts) -> Facts:
    drained = sum(consumer.drained for consumer in lane.by_uuid.values())
    return {"consumers": len(lane.by_uuid), "drained": drained}
