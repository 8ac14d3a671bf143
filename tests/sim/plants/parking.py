"""Bugs to plant into parking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.amqp.methods import QueueDeclare
from dispatcher.core.parking.events import ParkingQueueOpened
from dispatcher.core.parking.policy import Parking
from tests.sim.plants.planting import planted


@planted("order", seed=5)
def parked_group_goes_on_directly(lane: Any, session: Any, store: Any) -> None:
    """New messages of a parked group do not go behind its parked ones."""
    lane.state.parking.next_on_route = lambda group, queue: None


@planted("loss", seed=225)
def parking_queue_used_before_it_is_on_disk(lane: Any, session: Any, store: Any) -> None:
    """A parking queue is used as soon as RabbitMQ says that it is there."""
    call = session._link.call

    async def as_if_it_was_there(answer: Any) -> Any:
        declared = await answer
        declared.message_count = 1
        return declared

    def noting(channel: int, method: Any) -> Any:
        answer = call(channel, method)
        is_new = isinstance(method, QueueDeclare) and not method.passive and ".park." in method.queue
        return as_if_it_was_there(answer) if is_new else answer

    session._link.call = noting


@planted("look_ahead", seed=197)
def full_look_aheads_are_left(lane: Any, session: Any, store: Any) -> None:
    """Nothing is parked because a look-ahead is full."""
    if (parking := lane.state.find(Parking)) is not None:
        parking._look_for_blocked = lambda: False


class _Empty(set[Any]):
    """Nothing is added to it."""

    def add(self, element: Any) -> None:
        pass


def _as_opened(session: Any, change: Callable[[Any], None]) -> None:
    """Change the feed of each parking queue."""
    report = session.report

    def reporting(event: Any) -> None:
        if isinstance(event, ParkingQueueOpened):
            change(session._parking._feeds[event.queue])
        report(event)

    session.report = reporting


@planted("loss", "order", "readings", seed=172)
def what_came_back_is_acked_at_once(lane: Any, session: Any, store: Any) -> None:
    """What a quorum queue got back is acked as soon as it is settled."""

    def change(feed: Any) -> None:
        feed.settle = feed.acks.settle

    _as_opened(session, change)


@planted("loss", "order", "readings", seed=2962)
def what_came_back_is_given_back(lane: Any, session: Any, store: Any) -> None:
    """What a quorum queue got back, and can't go now, is put into it again."""

    def change(feed: Any) -> None:
        returned, give_back = feed._returned, feed.give_back

        def giving_back(tags: tuple[int, ...]) -> None:
            for tag in tags:
                returned._unsettled.pop(tag, None)
            give_back(tags)

        if returned is not None:
            feed.give_back = giving_back

    _as_opened(session, change)


@planted("loss", "order", "readings", seed=5)
def what_is_given_back_is_not_awaited(lane: Any, session: Any, store: Any) -> None:
    """A quorum queue is read on before it has taken back what was given back."""

    def change(feed: Any) -> None:
        feed._given_back = _Empty()

    _as_opened(session, change)


@planted("loss", "order", "readings", seed=172)
def what_comes_twice_is_a_repeated_copy(lane: Any, session: Any, store: Any) -> None:
    """A fetched message that is here under another tag is acked as a repeated copy."""

    def change(feed: Any) -> None:
        feed._delivered_again = lambda messages: None

    _as_opened(session, change)
