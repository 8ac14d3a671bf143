"""One leadership's spans: from the arrival of a message to its settle, with what happened between as events.

The service tells what it tells the ledger. A message is known by its queue and delivery tag, which are those
of this connection; one that is parked by the place where it was first, until it is read back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import structlog
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.operations.orders import SendTransfer
from dispatcher.core.orders import AckInbound, DeadLetter, LogEvent
from dispatcher.core.parking.orders import ParkCopy
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.records import (
    DeadLetterPending,
    Dispatched,
    IncarnationEnded,
    OpenEntry,
    SettledRange,
    Vanished,
)
from dispatcher.ledger.recorder import Recorder
from dispatcher.ledger.steps import Step
from dispatcher.ledger.waits import Waits
from dispatcher.traces.context import give_to_consumer, producers_context
from dispatcher.wire.group_text import format_group

log = structlog.get_logger()

#: A queue, and a delivery tag or an arrival in it.
_Place = tuple[QueueId, Any]
#: The outcome of a message that has not ended.
_PARKED: Final = "parked"


class _Trace:
    """A message's span, and where the message is."""

    __slots__ = ("arrival", "incarnation", "outcome", "received_us", "root", "span")

    def __init__(self, span: Span, received_us: int) -> None:
        self.span = span
        self.received_us = received_us
        self.incarnation = 0  # of the consumer that has it; 0: none
        self.arrival: _Place | None = None  # as the journal knows it, once it was handed over
        self.root: _Place | None = None  # where it was first, once it was parked
        self.outcome = ""  # how it is about to end, if not by its consumer's settle


class SpanRecorder(Recorder):
    """Makes the spans. `sample`: the share of messages that have one, where the producer says nothing."""

    def __init__(
        self, lane: str, tracer: Tracer, sample: float, now_us: Callable[[], int], open_max: int
    ) -> None:
        self._open_max = open_max
        self._name = lane
        self._tracer = tracer
        self._sample = sample
        self.now_us = now_us  # type: ignore[method-assign]  # asked at each step: no call between
        self._open: dict[_Place, _Trace] = {}
        self._parked: dict[_Place, _Trace] = {}
        self._in_hand: dict[int, set[_Trace]] = {}  # by the consumer's incarnation
        self._held: dict[_Place, int] = {}  # the incarnation of every message that is out, traced or not
        self._counts: dict[int, int] = {}  # how many each of them has
        self._known: set[int] = set()
        self._consumers: dict[int, str] = {}
        self._waits = Waits(groups_first=False)
        self._step_us = self._former_us = 0  # when this step, and that before it, were decided
        self._vanished: set[_Place] = set()  # in this step
        self._full = False

    # -- what the service tells --

    def began(self, lane: Lane, snapshot: Snapshot) -> None:
        options, self._lane_epoch = lane.state.options, lane.state.lane_epoch
        self._queues = [inbound.name for inbound in lane.state.inbounds]
        self._hands_over = bool(options.handover)
        self._waits.groups_first = lane.state.stops_failed or not lane.state.policy.keeps_owner
        for consumer in lane.state.by_number.values():
            self._introduce(consumer.number, consumer.id, consumer.prefetch)
            for message in consumer.in_flight.values():
                self._goes_out((message.queue, message.arrival), consumer.number)

    def arrived(self, messages: list[Original]) -> None:
        for message in messages:
            if not message.is_marker:
                self._begin(message)

    def read_back(self, messages: list[Original]) -> None:
        for message in messages:
            root = message.inbound, message.first_arrival
            trace = self._parked.get(root)
            if trace is None:  # it was parked under another leader
                trace = self._begin(message)
            else:
                self._event(trace, "read_back", self.now_us())
                self._open[message.queue, message.tag] = trace
                give_to_consumer(message.content, trace.span.get_span_context())
            if trace is not None:
                trace.root, self._parked[root] = root, trace

    def decided(self, effects: Effects, decided_at_us: int, commit: int = 0) -> None:
        """What ended in this step comes first: it may be what the messages waited for that it hands over."""
        self._waits.begin_step()
        self._step_us = decided_at_us
        self._vanished.clear()
        for number, found in effects.incarnations.items():
            if found is not None:
                self._waits.somebody_came |= number not in self._consumers
                self._introduce(number, found.consumer, found.prefetch)
        dispatched = []
        for record in effects.records:
            if type(record) is Dispatched:
                dispatched.append(record)
            else:
                self._recorded(record, effects)
        for action in effects.actions:
            if type(action) is not Dispatched:
                self._ordered(action, effects)
        for order in dispatched:
            self._dispatched(order)
        self._former_us = decided_at_us

    def ended(self, reason: str | None) -> None:
        """The next leader gets these messages again, and begins spans of its own."""
        for trace in {*self._open.values(), *self._parked.values()}:
            self._end(trace, "not_settled")
        self._open.clear()
        self._parked.clear()

    def _introduce(self, number: int, consumer: str, prefetch: int) -> None:
        self._consumers[number] = consumer
        self._waits.prefetch[number] = prefetch

    # -- spans --

    def _begin(self, message: Original) -> _Trace | None:
        """None: it has none."""
        context = producers_context(message.content)
        if not isinstance(context, Context):
            if not context or (self._sample < 1 and random.random() >= self._sample):
                return None
            context = Context()  # else it would be inside whatever span is current in this task
        if len(self._open) + len(self._parked) >= self._open_max:
            if not self._full:
                self._full = True
                log.warning("spans_skipped", lane=self._name, open_spans=self._open_max)
            return None
        now_us = self.now_us()
        span = self._tracer.start_span(
            f"dispatch {self._name}",
            context,
            SpanKind.CONSUMER,
            self._attributes(message),
            None,
            now_us * 1_000,
        )
        trace = self._open[message.queue, message.tag] = _Trace(span, now_us)
        if message.refusal is None:
            give_to_consumer(message.content, span.get_span_context())
        return trace

    def _attributes(self, message: Original) -> dict[str, str | int | bool]:
        attributes: dict[str, str | int | bool] = {
            "messaging.system": "rabbitmq",
            "messaging.operation.type": "receive",
            "messaging.destination.name": self._queues[message.inbound],
            "messaging.message.body.size": len(message.content.body),
            "dispatcher.lane": self._name,
            "dispatcher.id": message.fingerprint.hex(),
        }
        if message.group_id is not None:
            attributes["dispatcher.group"] = format_group(message.group_id)
        if message.redelivered:
            attributes["dispatcher.redelivered"] = True
        return attributes

    def _event(self, trace: _Trace, name: str, at_us: int | None = None, **facts: str | int) -> None:
        """Something that this step has decided, if no other time is given."""
        attributes = {f"dispatcher.{fact}": value for fact, value in facts.items()}
        trace.span.add_event(name, attributes, (at_us or self._step_us) * 1_000)

    def _end(self, trace: _Trace, outcome: str) -> None:
        self._leave_hand(trace)
        trace.span.set_attribute("dispatcher.outcome", outcome)
        trace.span.end(self.now_us() * 1_000)
        if trace.root is not None:
            self._parked.pop(trace.root, None)

    # -- hand-overs --

    def _dispatched(self, order: Dispatched) -> None:
        message, number = order.message, order.incarnation
        self._goes_out((message.queue, message.arrival), number)
        trace = self._open.get((message.queue, message.tag))
        if trace is None:
            return
        if trace.received_us <= self._former_us or order.attempt > 1 or message.is_parked:
            cause = self._waits.cause(order)
            waited_ms = max(0, self._step_us - trace.received_us) // 1_000
            self._event(trace, "waited_for", cause=cause.value, ms=waited_ms)
        self._event(
            trace, "handed_over", attempt=order.attempt, seq=order.seq, epoch=order.epoch,
            consumer=self._consumers.get(number, ""),
        )  # fmt: skip
        self._leave_hand(trace)
        trace.incarnation, trace.arrival, trace.outcome = number, (message.queue, message.arrival), ""
        self._in_hand.setdefault(number, set()).add(trace)

    def _leave_hand(self, trace: _Trace) -> None:
        if trace.incarnation:
            self._in_hand.get(trace.incarnation, set()).discard(trace)
            trace.incarnation = 0

    def _goes_out(self, place: _Place, number: int) -> None:
        self._comes_back(place)
        self._held[place] = number
        self._counts[number] = self._counts.get(number, 0) + 1

    def _comes_back(self, place: _Place) -> bool:
        """No consumer has it any more; whether one had it."""
        number = self._held.pop(place, 0)
        if number in self._counts:
            self._counts[number] -= 1
        return number > 0

    def _acked(self, messages: list[Original], effects: Effects) -> None:
        """These originals are gone from their queues."""
        for message in messages:
            place = message.queue, message.arrival
            was_out = self._comes_back(place)
            if self._waits.groups_first:
                self._waits.ended_groups.add(message.group_id)
            trace = self._open.pop((message.queue, message.tag), None)
            if trace is None:
                continue
            if trace.outcome == _PARKED:
                trace.outcome = ""
                trace.root = message.inbound, message.first_arrival
                self._parked[trace.root] = trace
                self._event(trace, "parked")
            else:
                self._end(trace, trace.outcome or self._outcome(message, was_out, effects))

    def _outcome(self, message: Original, was_out: bool, effects: Effects) -> str:
        """How a message ended of which nothing else was told."""
        if was_out:
            return "handed_over" if self._hands_over else "settled"
        if (message.queue, message.arrival) in effects.repeated:
            return "deduplicated"
        if message.arrival[0] != self._lane_epoch and (message.queue, message.arrival) not in self._vanished:
            return "settled_before"
        return "purged"

    # -- records and orders --

    def _recorded(self, record: Any, effects: Effects) -> None:
        match record:
            case SettledRange(number):
                self._waits.settles(number, self._counts.get(number, 0))
            case IncarnationEnded(number):
                self._counts.pop(number, None)
                self._held = {place: by for place, by in self._held.items() if by != number}
                for trace in self._in_hand.pop(number, ()):
                    trace.incarnation = 0
                    self._event(trace, "taken_back", consumer=self._consumers.get(number, ""))
            case DeadLetterPending(queue, arrival, reason=reason, calls=calls):
                self._failed((queue, arrival), reason, calls)
            case OpenEntry(queue, arrival, incarnation=0, group=group):
                why, count = Step(effects).failure(None if group is None else format_group(group))
                self._failed((queue, arrival), why or "", count or 0)
            case Vanished(queue, arrival):
                self._vanished.add((queue, arrival))
            case OpenEntry(queue, arrival, incarnation=number):  # of one that only its consumer told of
                self._goes_out((queue, arrival), number)

    def _failed(self, place: _Place, reason: str, calls: int) -> None:
        """Its consumer has given it up, if one had it."""
        for trace in self._in_hand.get(self._held.get(place, 0), ()):
            if trace.arrival == place:
                self._event(trace, "failed", reason=reason, calls=calls)
                self._leave_hand(trace)
                break
        self._comes_back(place)

    def _ordered(self, action: Any, effects: Effects) -> None:
        match action:
            case AckInbound(messages):
                self._acked(messages, effects)
            case LogEvent():
                self._waits.told(action)
            case ParkCopy(message=message):
                self._leaves(message, _PARKED)
            case SendTransfer(message=message):
                self._leaves(message, "moved")
            case DeadLetter(message, reason):
                if (trace := self._leaves(message, "dead_lettered")) is not None:
                    trace.span.set_attribute("dispatcher.reason", reason)
                    trace.span.set_status(Status(StatusCode.ERROR, reason))

    def _leaves(self, message: Original, outcome: str) -> _Trace | None:
        """It goes to another queue. If it does not, it will be ordered to go elsewhere, or handed over."""
        trace = self._open.get((message.queue, message.tag))
        if trace is not None:
            trace.outcome = outcome
        return trace
