"""Why something waits: the decisions of `eligibility`, asked again and rendered as a `Hold` with its facts.

Nothing is decided here. A capability that adds causes adds how to collect their facts, and the sentence that
operators read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol

from dispatcher.core.bounds import UNCONFIRMED_BYTES_MAX, UNCONFIRMED_MAX
from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.eligibility import Eligibility
from dispatcher.core.holds import FLAG_HOLDS, Facts, Hold, HoldKind
from dispatcher.core.inbound import UngroupedSource
from dispatcher.core.model import WAITING, Backlog, Consumer, Group, Original
from dispatcher.core.placement import Pool
from dispatcher.wire.group_text import format_group

#: So many groups are named of those that fill a prefetch.
GROUPS_NAMED: Final = 3

#: They end when the group's consumer does something: what keeps it from that is the better answer.
_UP_TO_CONSUMER: Final = (
    HoldKind.ONE_AT_A_TIME, HoldKind.DRAINING, HoldKind.BATCHED, HoldKind.WINDOW_FULL, HoldKind.SUSPECT
)  # fmt: skip
_OF_CONSUMER_STATE: Final = {
    ConsumerState.EXPECTED: HoldKind.UNHEARD,
    ConsumerState.REFUSING: HoldKind.QUEUE_FULL,
    ConsumerState.LEAVING: HoldKind.LEAVING,
    ConsumerState.LOST: HoldKind.LOST,
    ConsumerState.MARKED: HoldKind.LOST,
    ConsumerState.REVOKED: HoldKind.LOST,
}


class LaneFacts(Protocol):
    """What explanations need to know of a lane; LaneState is one."""

    now_ms: int
    pool: Pool
    by_uuid: dict[str, Consumer]
    eligibility: Eligibility
    unconfirmed: int  # copies on their way to the broker …
    unconfirmed_bytes: int  # … and their bytes


class Explanation:
    """Says what holds the groups of one lane."""

    def __init__(self, lane: LaneFacts) -> None:
        self._lane = lane
        self._decisions = lane.eligibility
        #: Where messages of a group are that are not here, for those of which nothing is here.
        self.elsewhere: list[Callable[[Group], Hold | None]] = []
        #: What capabilities add to `groups why`, a line each; of the group, and its messages in flight.
        self.details: list[Callable[[Group, list[Original]], list[str]]] = []
        #: The same for `consumers list`: columns of a consumer's row.
        self.consumer_columns: list[Callable[[Consumer], dict[str, Any]]] = []
        #: Which groups `groups list` shows for a state that is not one of `GroupState`.
        self.shown_as: dict[str, Callable[[Group], bool]] = {}
        #: For the causes that capabilities add: what operators read, made of the facts.
        self.sentences: dict[HoldKind, Callable[[Facts], str]] = {}
        #: What capabilities say of a group with flags, whichever of these holds it.
        self.flag_facts: list[Callable[[Group], Facts]] = []
        self.facts: dict[HoldKind, Callable[[Group, Original | None], Facts]] = {
            HoldKind.ONE_AT_A_TIME: _out,
            HoldKind.DRAINING: _out,
            HoldKind.BATCHED: _out,
            HoldKind.WINDOW_FULL: lambda group, head: {**_out(group, head), "window": group.window},
            **dict.fromkeys(FLAG_HOLDS, self._of_flags),
        }

    def _of_flags(self, group: Group, _: Original | None) -> Facts:
        return {name: fact for collect in self.flag_facts for name, fact in collect(group).items()}

    def lane_hold(self) -> Hold | None:
        """What holds the whole lane now."""
        holds, now_ms = self._decisions.lane_holds, self._lane.now_ms
        kind = holds.first(now_ms)
        if kind is not None:
            return Hold(kind, partial(holds.facts, kind, now_ms))
        return Hold(HoldKind.UNCONFIRMED, dict) if _window_is_full(self._lane) else None

    def why(self, group: Group) -> Hold | None:
        """Why the group waits; None: it goes with the next step, or nothing of it waits. Of a group of which
        nothing waits: what operators have said that will hold its next messages."""
        heads = list(waiting_heads(group))
        away = None
        if not heads:
            away = next((hold for look in self.elsewhere if (hold := look(group)) is not None), None)
            if away is None and not group.unresolved:
                return self._hold_by_flags(group)
        lane_hold = self.lane_hold()
        if lane_hold is not None:
            return lane_hold
        if away is not None and away.kind is HoldKind.PARKING_UNAVAILABLE:  # whatever else may hold it
            return away
        if not heads:
            return self._hold_on(group, None, self._decisions.held_by(group, None)) or away
        found = [self._hold_on(backlog.group, head, self._held_by(backlog, head)) for backlog, head in heads]
        return None if None in found else found[0]

    def why_ungrouped(self, source: UngroupedSource) -> Hold | None:
        """Why the messages without a group wait in one inbound queue; None: one of them goes with the next
        step, or none waits."""
        is_at_limit = source.is_at_limit()
        if not is_at_limit and source.first() is None:
            return None
        lane_hold = self.lane_hold()
        if lane_hold is not None:
            return lane_hold
        if not self._lane.pool:
            return Hold(_nobody(self._lane), partial(_capacity, self._lane))
        return Hold(HoldKind.LIMIT_FULL, dict) if is_at_limit else None

    def _hold_by_flags(self, group: Group) -> Hold | None:
        kind = self._decisions.flag_holds.first(group) if group.flags is not None else None
        return None if kind is None else Hold(kind, partial(self.facts[kind], group, None))

    def _held_by(self, backlog: Backlog, head: Original) -> HoldKind | None:
        """A listed backlog may be served: only the consumer that would get it can hold it."""
        if backlog.listed_in is not None:
            return None
        return self._decisions.held_by(backlog.group, head)

    def _hold_on(self, group: Group, head: Original | None, kind: HoldKind | None) -> Hold | None:
        taker = group.taker
        if kind is None and taker is None:
            return None if self._lane.pool else Hold(_nobody(self._lane), partial(_capacity, self._lane))
        if taker is not None and (kind is None or (kind in _UP_TO_CONSUMER and not taker.receives)):
            return consumer_hold(taker, group)
        assert kind is not None
        return Hold(kind, partial(self.facts[kind], group, head))


def consumer_hold(consumer: Consumer, group: Group) -> Hold | None:
    """The same, with the facts. The group is its own, or pinned to it."""
    kind = consumer_held_by(consumer)
    return (
        None if kind is None else Hold(kind, partial(_consumer, consumer, is_owner=group.owner is consumer))
    )


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


def waiting_heads(group: Group) -> Iterator[tuple[Backlog, Original]]:
    """The first message that waits in each backlog of the group. Changes nothing, as `Backlog.head` does."""
    for backlog in (group.backlogs or {}).values():
        for message in backlog.messages:
            if message.state is WAITING:
                yield backlog, message
                break


def _out(group: Group, _: Original | None) -> Facts:
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
        "in_flight_of": _most_of(consumer),
    }  # fmt: skip


def _most_of(consumer: Consumer) -> list[dict[str, Any]]:
    """The groups that most of what it has belongs to, with how much; those without a group as None."""
    counts = Counter(message.group_id for message in consumer.in_flight.values())
    return [
        {"group": format_group(group_id) if group_id is not None else None, "messages": count}
        for group_id, count in counts.most_common(GROUPS_NAMED)
    ]


def _window_is_full(lane: LaneFacts) -> bool:
    """No more copies go before the broker has confirmed some."""
    return lane.unconfirmed >= UNCONFIRMED_MAX or lane.unconfirmed_bytes >= UNCONFIRMED_BYTES_MAX


def _nobody(lane: LaneFacts) -> HoldKind:
    return HoldKind.NO_CAPACITY if lane.by_uuid else HoldKind.NO_CONSUMER


def _capacity(lane: LaneFacts) -> Facts:
    drained = sum(consumer.drained for consumer in lane.by_uuid.values())
    return {"consumers": len(lane.by_uuid), "drained": drained}
