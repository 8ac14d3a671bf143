"""What `groups why` says is true: whatever waits is held, for a cause that is there, and as long as it is.

Looked at when a delivery pass has found nothing that could go: a group that waits then without a reason was
forgotten, and a reason without its cause is a lie, or was not lifted. The same goes for messages without a
group, in a lane that doesn't group. The causes are counted anew here, from messages, consumers and what
operators have said, not from what the decision looks at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from dispatcher.core.consumer_life import ConsumerState
from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import Event, PublishersBlocked
from dispatcher.core.holds import HoldKind
from dispatcher.core.lane import Lane
from dispatcher.core.membership.membership import Membership
from dispatcher.core.model import Consumer, Group, MessageState, Original
from dispatcher.core.operators.flag_commands import LANE
from dispatcher.core.operators.flags import GROUP
from dispatcher.core.optional.sequence_hold import SequenceHold
from dispatcher.core.optional.sequence_numbers import SequenceNumbers
from dispatcher.core.optional.start_gate import live_consumers
from dispatcher.core.records import Dispatched
from dispatcher.core.recovery.matching import Recovery
from dispatcher.core.state import LaneState
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.world import World

#: A lane may have too many groups to look at all after each pass: it looks at this many, at others the next
#: time.
GROUPS_AT_A_TIME: Final = 12


class _Waiting(NamedTuple):
    """A group with messages that could go, and the reason that is given for it."""

    lane: Lane
    group: Group
    heads: list[Original]  # the first of each backlog
    row: Mapping[str, Any]  # what operators have said of it, as Redis has it once this step is committed
    facts: Mapping[str, Any]

    @property
    def out(self) -> list[Original]:
        consumers = self.lane.state.by_uuid.values()
        return [m for c in consumers for m in c.in_flight.values() if m.group is self.group]

    @property
    def consumer(self) -> Consumer | None:
        """Who is named, if the group's next message is his."""
        consumer = self.lane.state.by_id.get(self.facts["consumer"])
        return consumer if consumer in (self.group.owner, self.group.pinned_to) else None

    @property
    def standing(self) -> ConsumerState | None:
        return self.consumer.state if self.consumer is not None else None


class WhyChecker(Checker):
    """Asks for the reason of groups that wait, and looks whether it is so."""

    name = "why"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._read: dict[int, dict[bytes, dict[str, Any]]] = {}  # flags, by lane epoch
        self._flags: dict[bytes, dict[str, Any]] = {}  # of the latest leader
        self._lane: Lane | None = None
        self._is_blocked = False
        self._next = 0  # group to look at first

    def read(self, snapshot: Snapshot) -> None:
        self._read[snapshot.lane_epoch] = dict(snapshot.operator_rows)

    def leading(self, lane: Lane) -> None:
        self._lane, self._is_blocked = lane, False
        self._flags = self._read.get(lane.state.lane_epoch, {})
        delivery: Any = lane._delivery
        run = delivery.run

        def watched() -> bool:
            idle: bool = run()
            if idle and lane is self._lane:
                self._look(lane)
                if not lane.state.policy.grouped:
                    self._look_at_ungrouped(lane)
            return idle

        delivery.run = watched

    def decided(self, process: str, events: list[Event], effects: Effects) -> None:
        lane = self._lane
        if lane is None or getattr(lane, "process_name", process) != process:
            return
        for event in events:
            if isinstance(event, PublishersBlocked):
                self._is_blocked = event.blocked
        for key, row in effects.operator_rows.items():
            if row is None:
                self._flags.pop(key, None)
            else:
                self._flags[key] = row
        self._look_at_lane(lane, effects)

    # -- the lane --

    def _look_at_lane(self, lane: Lane, effects: Effects) -> None:
        state = lane.state
        standing = {kind for kind, hold in state.lane_holds.items() if state.now_ms < hold.until_ms}
        for kind, is_so in self._lane_causes(lane).items():
            if kind in standing and not is_so:
                self.violate(f"the lane is held ({kind.value}), and there is no cause for that")
        must = {HoldKind.PUBLISHERS_BLOCKED: self._is_blocked, HoldKind.LANE_PAUSED: LANE in self._flags}
        for kind, is_so in must.items():
            if is_so and kind not in standing:
                self.violate(f"the lane is to be held ({kind.value}), and is not")
        if standing and any(isinstance(record, Dispatched) for record in effects.records):
            self.violate(f"something is handed over while the lane is held ({', '.join(sorted(standing))})")

    def _lane_causes(self, lane: Lane) -> dict[HoldKind, bool]:
        state, options = lane.state, lane.state.options
        is_busy = any(consumer.in_flight for consumer in state.by_uuid.values())
        wanted, here = options.start_consumers, live_consumers(state)
        return {
            HoldKind.PUBLISHERS_BLOCKED: self._is_blocked,
            HoldKind.LANE_PAUSED: LANE in self._flags,
            HoldKind.READING_BACK: bool(state.reclaiming),
            HoldKind.CONSUMERS_ASKED: lane.state.feature(Membership)._reports.open,
            HoldKind.QUIESCING: is_busy or state.reset_until is not None,
            HoldKind.NOT_BEGUN: not here or not wanted or here < wanted,
        }

    # -- messages without a group --

    def _look_at_ungrouped(self, lane: Lane) -> None:
        """In a lane that doesn't group nothing else waits but suspects, and what is about to be parked."""
        state = lane.state
        to_park = (m for queue in state.parking.values() for m in queue.waiting)
        others = [*state.suspects, *(m for m in to_park if m.state is MessageState.WAITING)]
        for inbound in state.inbounds:
            waits = inbound.waiting - sum(message.inbound == inbound.index for message in others)
            hold = state.explanation.why_ungrouped(inbound.ungrouped)
            if (hold is not None) != (waits > 0):
                self.violate(f"{waits} messages wait without a group, held by {hold and hold.kind.value}")
            elif hold is not None:
                self.world.history.met["why", hold.kind.value] += 1
                is_so = _UNGROUPED_CAUSES.get(hold.kind)
                if is_so is None or not is_so(state):
                    self.violate(f"messages without a group are said to be held ({hold.kind.value})")

    # -- groups --

    def _look(self, lane: Lane) -> None:
        groups = list(lane.state.groups.values())
        first = self._next % len(groups) if len(groups) > GROUPS_AT_A_TIME else 0
        self._next = first + GROUPS_AT_A_TIME
        for group in (groups[first:] + groups[:first])[:GROUPS_AT_A_TIME]:
            heads = [
                head for backlog in (group.backlogs or {}).values() if (head := _first(backlog.messages))
            ]
            if heads:
                self._look_at_group(lane, group, heads)

    def _look_at_group(self, lane: Lane, group: Group, heads: list[Original]) -> None:
        hold = lane.state.explanation.why(group)
        if hold is None:
            self.violate(f"{group} waits with {heads[0]} although nothing could go, and has no reason")
            return
        kind = hold.kind
        self.world.history.met["why", kind.value] += 1
        is_so = _GROUP_CAUSES.get(kind)
        waiting = _Waiting(lane, group, heads, self._row(lane.state, group), hold.facts)
        if is_so is None or not is_so(waiting):
            self.violate(f"{group} is said to be held ({kind.value}: {dict(hold.facts)}), and it is not so")

    def _row(self, state: LaneState, group: Group) -> Mapping[str, Any]:
        """What operators have said of the group, up to this step."""
        key = GROUP + group.id
        row = state.effects.operator_rows[key] if key in state.effects.operator_rows else self._flags.get(key)
        return row or {}


def _first(messages: Any) -> Original | None:
    return next((message for message in messages if message.state is MessageState.WAITING), None)


def _stop(waiting: _Waiting) -> Mapping[str, Any] | None:
    stopped: Mapping[str, Any] | None = waiting.row.get("stopped")
    return stopped


def _is_pinned_to_nobody(waiting: _Waiting) -> bool:
    state, pin = waiting.lane.state, waiting.row.get("pin")
    is_there = pin in state.by_id and pin not in state.drained_consumers
    return waiting.group.owner is None and pin is not None and not is_there


def _comes_back(waiting: _Waiting) -> bool:
    entries = waiting.lane.state.feature(Recovery).open_entries()
    return any(entry.group is waiting.group and not entry.tag for entry in entries)


def _is_suspected(waiting: _Waiting) -> bool:
    attempts = max(1, waiting.lane.state.options.attempts - 1)
    return any(head.deaths >= attempts for head in waiting.heads)


def _misses_a_number(waiting: _Waiting) -> bool:
    state = waiting.lane.state
    sequences, hold = state.find(SequenceNumbers), state.find(SequenceHold)
    if sequences is None or hold is None:
        return False
    for head in waiting.heads:
        group_id = head.group_id or b""
        last = sequences.last(group_id)
        if last is None or head.attempt:
            continue
        if head.number is None or head.number > last + 1 or state.absent.go_before(group_id):
            return True
    return False


def _is_full(consumer: Consumer) -> bool:
    """Counted by what it has, not by its credit."""
    return len(consumer.in_flight) + (consumer.depth or 0) >= consumer.prefetch


def _has_no_room(waiting: _Waiting) -> bool:
    consumer = waiting.consumer
    return consumer is not None and consumer.state in _GETS and _is_full(consumer)


def _is_kept(waiting: _Waiting) -> bool:
    suspect = waiting.consumer.alone_with if waiting.consumer is not None else None
    return suspect is not None and suspect.state in (MessageState.WAITING, MessageState.IN_FLIGHT)


def _nobody_is_free(state: LaneState) -> bool:
    free = [
        c for c in state.by_uuid.values()
        if c.state is ConsumerState.LIVE and c.id not in state.drained_consumers and not _is_full(c)
        and not c.alone_with
    ]  # fmt: skip
    return bool(state.by_uuid) and not free


def _ids_are_at_limit(state: LaneState) -> bool:
    """Of each id that waits."""
    limit = state.options.max_in_flight_per_group
    out = Counter(m.group_id for c in state.by_uuid.values() for m in c.in_flight.values())
    lines: list[Any] = [inbound.ungrouped.messages for inbound in state.inbounds]
    waiting = [
        message for line in lines for part in (*line._turn.values(), *line._full.values()) for message in part
        if message.state is MessageState.WAITING
    ]  # fmt: skip
    return limit is not None and all(m.group_id and out[m.group_id] >= limit for m in waiting)


def _stands(*states: ConsumerState) -> Callable[[_Waiting], bool]:
    return lambda waiting: waiting.standing in states


_S = ConsumerState
_GETS: Final = (_S.LIVE, _S.FROZEN)
_GROUP_CAUSES: Final[dict[HoldKind, Callable[[_Waiting], bool]]] = {
    HoldKind.ONE_AT_A_TIME: lambda w: w.lane.state.stops_failed and len(w.out) == w.facts["in_flight"] > 0,
    HoldKind.TRANSFERRING: lambda w: w.group.flags is not None and w.group.flags.operation is not None,
    HoldKind.STOPPED: lambda w: (stop := _stop(w)) is not None and stop["verdict"] is None,
    HoldKind.DECIDED: lambda w: (stop := _stop(w)) is not None and stop["verdict"] is not None,
    HoldKind.PAUSED: lambda w: bool(w.row.get("paused")),
    HoldKind.PIN_ABSENT: _is_pinned_to_nobody,
    HoldKind.RECOVERING: _comes_back,
    HoldKind.DRAINING: lambda w: len(w.out) == w.facts["in_flight"] > 0,
    HoldKind.BATCHED: lambda w: (
        not w.lane.state.policy.keeps_owner and len(w.out) == w.facts["in_flight"] > 0
    ),
    HoldKind.WINDOW_FULL: lambda w: len(w.out) == w.facts["in_flight"] >= w.facts["window"] > 0,
    HoldKind.SUSPECT: _is_suspected,
    HoldKind.NUMBER_MISSING: _misses_a_number,
    HoldKind.QUEUE_UNREAD: _stands(_S.LOST, _S.MARKED, _S.LEAVING),
    HoldKind.EVICTED: lambda w: w.consumer is not None and w.consumer.evicted_by is not None,
    HoldKind.LOST: _stands(_S.LOST, _S.MARKED),
    HoldKind.UNHEARD: _stands(_S.EXPECTED),
    HoldKind.QUEUE_FULL: _stands(_S.REFUSING),
    HoldKind.LEAVING: _stands(_S.LEAVING),
    HoldKind.KEPT_FREE: _is_kept,
    HoldKind.PREFETCH_FULL: _has_no_room,
    HoldKind.NO_CONSUMER: lambda w: not w.lane.state.by_uuid,
    HoldKind.NO_CAPACITY: lambda w: w.group.owner is None and _nobody_is_free(w.lane.state),
}
_UNGROUPED_CAUSES: Final[dict[HoldKind, Callable[[LaneState], bool]]] = {
    HoldKind.NO_CONSUMER: lambda state: not state.by_uuid,
    HoldKind.NO_CAPACITY: _nobody_is_free,
    HoldKind.LIMIT_FULL: _ids_are_at_limit,
}
