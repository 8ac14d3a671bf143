"""Bugs of the watch over messages that are not settled in time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dispatcher.core.membership.ack_timeout import EVERYBODY, AckTimeout
from dispatcher.core.membership.evictions import EvictedBy, Evictions
from dispatcher.core.membership.membership import Membership
from dispatcher.core.orders import PublishMarker
from dispatcher.wire.protocol import Marker
from tests.sim.plants.planting import planted


def _timeout_of(lane: Any) -> Any:
    """The watch of the lane; in a lane without it something that nothing asks."""
    return lane.state.find(AckTimeout) or SimpleNamespace(_report=None, finish_step=None)


@planted("overdue", seed=23)
def overdue_a_tick_early(lane: Any, session: Any, store: Any) -> None:
    """A message that will be overdue at the next look is reported, and its consumer evicted, at this one."""
    timeout, options = _timeout_of(lane), lane.state.options
    report = timeout._report

    def early(consumer: Any, dispatched_before_ms: int) -> bool:
        said: bool = report(consumer, dispatched_before_ms + options.liveness_interval_ms)
        return said

    timeout._report = early


@planted("overdue", seed=2)
def time_with_a_former_leader_counted(lane: Any, session: Any, store: Any) -> None:
    """A message that a former leader handed over is overdue as soon as a new one looks."""
    lane.state.patience_from_ms = 0
    _timeout_of(lane)._late_up_to_ms = 0


@planted("overdue", seed=20)
def late_by_what_was_heard(lane: Any, session: Any, store: Any) -> None:
    """Lateness is judged by the settles read so far, without asking what RabbitMQ has."""
    timeout = _timeout_of(lane)
    look = timeout.finish_step

    def unasked() -> None:
        asked = timeout._asked
        look()
        if timeout._asked > asked:
            lane.state.effects.actions.pop()
            epoch = lane.state.lane_epoch
            timeout.marker(Marker(incarnation=EVERYBODY, lane_epoch=epoch, n=timeout._asked))

    timeout.finish_step = unasked


@planted("overdue", seed=23)
def evicted_only_in_the_log(lane: Any, session: Any, store: Any) -> None:
    """A consumer that does not settle in time is named, and never evicted."""
    evictions = lane.state.features[Evictions]
    evict = evictions.evict

    def forgotten(consumer: Any, by: EvictedBy) -> None:
        if by is not EvictedBy.ACK_TIMEOUT:
            evict(consumer, by)

    evictions.evict = forgotten


@planted("overdue", seed=20)
def only_the_first_one_told_of(lane: Any, session: Any, store: Any) -> None:
    """Of the messages that a consumer has for too long only the first one is reported."""
    timeout = _timeout_of(lane)
    report = timeout._report

    def first_only(consumer: Any, dispatched_before_ms: int) -> bool:
        in_flight = consumer.in_flight
        consumer.in_flight = dict(list(in_flight.items())[:1])
        try:
            said: bool = report(consumer, dispatched_before_ms)
        finally:
            consumer.in_flight = in_flight
        return said

    timeout._report = first_only


@planted("overdue", seed=94)
def evicted_when_its_marker_is_read(lane: Any, session: Any, store: Any) -> None:
    """An evicted consumer gets more until its last settles have been read."""
    evicted = set()

    def order_only(consumer: Any) -> None:
        evicted.add(consumer.uuid)
        lane.state.effects.actions.append(PublishMarker(consumer.uuid, consumer.n))

    def marker(event: Marker) -> None:
        consumer = lane.state.by_uuid.get(event.incarnation)
        if consumer is not None and event.incarnation in evicted:
            lane.state.feature(Membership).liveness.mark(consumer)

    lane.state.features[Evictions]._liveness = SimpleNamespace(mark=order_only)
    lane._handlers[Marker].insert(0, marker)
