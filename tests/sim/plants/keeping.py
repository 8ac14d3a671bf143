"""Bugs to plant where a lane keeps incoming messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.amqp.events import Confirmed
from tests.sim.plants.planting import planted


def _once_there(lane: Any, session: Any, plant: Callable[[Any], None]) -> None:
    """The session makes its history when it begins, and starts the core behind that."""
    start = lane.start

    def started(now_ms: int) -> Any:
        plant(session._history)
        return start(now_ms)

    lane.start = started


@planted("kept", seed=93)
def what_comes_back_is_not_kept(lane: Any, session: Any, store: Any) -> None:
    """A message that RabbitMQ delivers a second time counts as kept before."""

    def plant(history: Any) -> None:
        keep = history.keep

        def once(deliveries: Any, messages: Any) -> None:
            pairs = [(d, m) for d, m in zip(deliveries, messages, strict=True) if not m.redelivered]
            keep([delivery for delivery, _ in pairs], [message for _, message in pairs])

        history.keep = once

    _once_there(lane, session, plant)


@planted("kept", seed=1242)
def refused_by_the_history_and_acked(lane: Any, session: Any, store: Any) -> None:
    """A message that the history does not take counts as kept."""

    def plant(history: Any) -> None:
        receive = history.receive

        def lenient(event: Any) -> Any:
            is_refusal = type(event) is Confirmed and event.channel == history._channel and event.nacked
            return receive(event._replace(nacked=False) if is_refusal else event)

        history.receive = lenient

    _once_there(lane, session, plant)


@planted("kept", seed=25)
def kept_from_its_end(lane: Any, session: Any, store: Any) -> None:
    """Of messages that are read together the last goes to the history first."""

    def plant(history: Any) -> None:
        keep = history.keep
        history.keep = lambda deliveries, messages: keep(list(deliveries)[::-1], list(messages)[::-1])

    _once_there(lane, session, plant)
