"""Ending an incarnation that has not ended itself: an operator wants it, or it does not settle in time.

Its end goes through the control queue as with a death: what the broker had confirmed to it before the marker
counts, nothing later. It hears `dispatch.taken`, and no join brings it back.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from dispatcher.core.consumer_life import ConsumerState, Ending
from dispatcher.core.effects import Snapshot
from dispatcher.core.feature import Feature
from dispatcher.core.forwarding.rules import of_this_lane
from dispatcher.core.holds import Facts, HoldKind
from dispatcher.core.membership.liveness import Liveness
from dispatcher.core.membership.rows import commit_incarnation
from dispatcher.core.model import Consumer
from dispatcher.core.operators.commands import Arguments, Commands, argument
from dispatcher.core.state import LaneState
from dispatcher.core.wording import begin, named
from dispatcher.errors import CommandRefused


class EvictedBy(Enum):
    """Who ends an incarnation that would go on."""

    OPERATOR = "operator"
    ACK_TIMEOUT = "ack_timeout"
    FORMER_LEADER = "a former dispatcher"  # for any reason
    HANDOVER = "handover"  # the lane has, or has no more, consumers that only read their queues


def ending_of(consumer: Consumer) -> Ending:
    """What its end says of the messages that it has (C-9)."""
    by = consumer.evicted_by
    if by in (EvictedBy.OPERATOR, EvictedBy.HANDOVER):
        return Ending.NOTHING
    is_meant = consumer.resumes_as is ConsumerState.LEAVING or by is EvictedBy.FORMER_LEADER
    return Ending.MEANT if is_meant else Ending.DEATH


class Overdue:
    """Messages that a consumer has had for longer than the lane's `ack_timeout` (`ConsumerLife.note`)."""

    count = 0


class Evictions(Feature):
    """Evicts, by command or for the lane's `ack_timeout`."""

    def __init__(self, state: LaneState, liveness: Liveness, commands: Commands) -> None:
        self._state = state
        self._liveness = liveness
        commands.add("consumers.evict", self.command, "consumer", "incarnation", reassigns=True)
        state.explanation.consumer_columns.append(_columns)
        state.explanation.sentences[HoldKind.EVICTED] = _sentence

    def load_first(self, snapshot: Snapshot) -> None:
        """Whom a former leader had begun to evict, and who is of a lane of another kind. Membership has
        loaded them."""
        state = self._state
        for number, consumer in state.by_number.items():
            row = snapshot.incarnations[number]
            if of_this_lane(state.options, row) is not row:
                consumer.evicted_by = EvictedBy.HANDOVER
            elif row.state == "evicted":
                consumer.evicted_by = EvictedBy.FORMER_LEADER

    def begin(self) -> None:
        """Go on with what a former leader had begun, and tell it again: that one may not have come to it."""
        for consumer in self._state.by_uuid.values():
            if consumer.evicted_by is not None:
                self._tell(consumer, consumer.evicted_by)
                self._liveness.mark(consumer)

    def command(self, arguments: Arguments) -> dict[str, Any]:
        """The command `consumers.evict`. Raises CommandRefused."""
        name, incarnation = (argument(arguments, key, str) for key in ("consumer", "incarnation"))
        consumer = self._state.by_id.get(name or "")
        if consumer is None:
            raise CommandRefused(f"no consumer {name!r}; `dispatcher consumers list` shows who is there")
        if incarnation not in (None, consumer.uuid):
            raise CommandRefused(f"consumer {name!r} is another incarnation by now: {consumer.uuid}")
        if consumer.evicted_by is not None:
            raise CommandRefused(f"consumer {name!r} is being evicted already")
        result = {
            "consumer": consumer.id, "incarnation": consumer.uuid, "queue": consumer.queue,
            "in_flight": len(consumer.in_flight), "groups": len(consumer.groups),
        }  # fmt: skip
        self.evict(consumer, EvictedBy.OPERATOR)
        return result

    def evict(self, consumer: Consumer, by: EvictedBy) -> None:
        """Take it back as soon as its settles so far have been read."""
        state = self._state
        consumer.evicted_by = by
        state.counters["consumers_evicted"] += 1
        self._tell(consumer, by)
        commit_incarnation(state, consumer)
        self._liveness.mark(consumer)

    def _tell(self, consumer: Consumer, by: EvictedBy) -> None:
        facts = {"incarnation": consumer.uuid, "by": by.value, "in_flight": len(consumer.in_flight)}
        self._state.log_event("consumer_evicted", consumer=consumer.id, **facts)


def _columns(consumer: Consumer) -> dict[str, Any]:
    """What `consumers list` shows of it."""
    by = consumer.evicted_by
    return {"overdue": consumer.note(Overdue).count, "evicted_by": by.value if by is not None else None}


def _sentence(facts: Facts) -> str:
    return begin(f"{named(facts)} is being evicted: waits until its last settles have been read.")
