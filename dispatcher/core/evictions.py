"""Ending an incarnation that has not ended itself: an operator wants it, or it does not settle in time.

Its end goes through the control queue as with a death: what the broker had confirmed to it before the marker
counts, nothing later. It hears `dispatch.taken`, and no join brings it back.
"""

from __future__ import annotations

from typing import Any

from dispatcher.core.commands import Arguments, Commands, argument
from dispatcher.core.consumers import PRESENT, Consumer, EvictedBy
from dispatcher.core.liveness import Liveness
from dispatcher.core.state import LaneState
from dispatcher.errors import CommandRefused


class Evictions:
    """Watches `ack_timeout`, and evicts."""

    def __init__(self, state: LaneState, liveness: Liveness, commands: Commands) -> None:
        self._state = state
        self._liveness = liveness
        self._next_look_ms = 0
        commands.add("consumers.evict", self.command, "consumer", "incarnation")

    def load(self) -> None:
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
        state.effects.incarnations[consumer.number] = consumer.row()
        self._liveness.mark(consumer)

    def _tell(self, consumer: Consumer, by: EvictedBy) -> None:
        facts = {"incarnation": consumer.uuid, "by": by.value, "in_flight": len(consumer.in_flight)}
        self._state.tell("consumer_evicted", consumer=consumer.id, **facts)

    # -- ack_timeout --

    def next_deadline_ms(self) -> int | None:
        state = self._state
        if state.options.ack_timeout_ms is None or not state.by_uuid or state.publishers_blocked:
            return None
        return self._next_look_ms

    def run_timers(self) -> None:
        """Look who has had something for too long, as often as consumers are looked after."""
        state = self._state
        timeout_ms = state.options.ack_timeout_ms
        if timeout_ms is None or state.publishers_blocked or state.now_ms < self._next_look_ms:
            return
        self._next_look_ms = state.now_ms + min(state.options.liveness_interval_ms, timeout_ms)
        for consumer in list(state.by_uuid.values()):
            is_late = consumer.state in PRESENT and self._report(consumer, state.now_ms - timeout_ms)
            if is_late and state.options.evicts_overdue:
                self.evict(consumer, EvictedBy.ACK_TIMEOUT)

    def _report(self, consumer: Consumer, dispatched_before_ms: int) -> bool:
        """Tell of messages that are overdue, each once; whether there is any. In flight they are in the order
        of their dispatch. What is older than the beginning of this leadership has its time from there."""
        state = self._state
        consumer.overdue = 0
        if state.patience_from_ms > dispatched_before_ms:
            return False
        for message in consumer.in_flight.values():
            if message.dispatched_at_ms > dispatched_before_ms:
                break
            consumer.overdue += 1
            if not message.overdue:
                message.overdue = True
                state.counters["overdue"] += 1
                state.tell_of(
                    message, "message_overdue", consumer=consumer.id, seq=message.seq, attempt=message.attempt
                )
        return consumer.overdue > 0
