"""Finding the publish over which RabbitMQ closes the channel, with as little disturbance as can be."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from dispatcher.amqp.events import ConnectionClosed
from dispatcher.core.model import Original
from dispatcher.core.orders import DeadLetter, SendNotice
from dispatcher.core.records import Dispatched
from dispatcher.service.publish_bisect import (
    NOTHING_REJECTED,
    BisectState,
    PublishBisector,
    ended_over_a_publish,
)
from dispatcher.service.refused_publish_retry import RETRY_S_MAX, RETRY_S_MIN, RefusedPublishRetry


def message(number: int) -> Original:
    return Original(0, number, (7, number), number.to_bytes(16), b"g", object(), 100, 0)


def copy(number: int) -> Dispatched:
    return Dispatched(message(number), 1, "q", number, number, 1, 1)


class Channel:
    """A broker that closes the channel over the orders in `bad`, at the other end of a PublishBisector."""

    def __init__(self, bisector: PublishBisector, bad: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.bisector = bisector
        self.bad = bad
        self.taken: list[Any] = []
        self.rejected: list[Any] = []
        self.closed = 0
        self.tries: list[int] = []

    def drain(self) -> None:
        """Until nothing waits; nothing is answered before the end of a batch, as it may be."""
        while orders := self.bisector.take(under_way=0):
            self.tries.append(len(orders))
            refused = next((n for n, order in enumerate(orders) if id(order) in self.bad), None)
            if refused is None:
                self.taken += orders
                self.bisector.all_answered()
                continue
            self.closed += 1
            rejected = self.bisector.closed(orders)
            if rejected is not None:
                self.rejected.append(rejected)


def bisecting(orders: list[Any]) -> PublishBisector:
    """They were all unanswered when the channel was closed."""
    bisector = PublishBisector(NOTHING_REJECTED)
    assert bisector.closed(orders) is None
    return bisector


@pytest.mark.parametrize("place", [0, 1, 2, 3, 100, 500, 998, 999])
def test_the_rejected_publish_is_found_among_a_thousand_and_the_order_is_kept(place: int) -> None:
    orders: list[Any] = [copy(number) for number in range(1_000)]
    behind = copy(5_000)
    channel = Channel(bisecting(orders), {id(orders[place])})
    channel.bisector.add(behind)
    channel.drain()
    assert channel.rejected == [orders[place]]
    assert channel.closed <= 12
    assert sum(channel.tries) < 2_600
    first = list(dict.fromkeys(map(id, channel.taken)))
    assert first == [id(order) for order in [*orders[:place], *orders[place + 1 :], behind]]


def test_several_are_found_one_after_another() -> None:
    orders: list[Any] = [copy(number) for number in range(50)]
    bad = [orders[n] for n in (0, 1, 20, 21, 49)]
    channel = Channel(bisecting(orders), {id(order) for order in bad})
    channel.drain()
    assert channel.rejected == bad
    assert channel.taken == [order for order in orders if order not in bad]


def test_nobody_is_blamed_who_was_not_alone() -> None:
    one, two = copy(1), copy(2)
    bisector = bisecting([one, two])
    assert bisector.take(under_way=3) == [], "the answers to what is under way come first"
    assert bisector.take(under_way=0) == [one]
    assert bisector.take(under_way=1) == []
    bisector.all_answered()
    assert bisector.take(under_way=0) == [two]
    other = copy(3)
    assert bisector.closed([two, other]) is None


def test_what_was_answered_before_the_end_of_its_batch_is_innocent() -> None:
    orders: list[Any] = [copy(number) for number in range(4)]
    bisector = bisecting(orders)
    assert bisector.take(under_way=0) == orders[:1]
    bisector.all_answered()
    assert bisector.take(under_way=0) == orders[1:3]
    assert bisector.closed(orders[2:3]) is None, "it was not alone"
    assert bisector.take(under_way=0) == orders[2:3]
    assert bisector.closed(orders[2:3]) is orders[2]


def test_the_dead_letter_of_a_rejected_publish_is_published_with_care() -> None:
    rejected, other = copy(1), copy(2)
    bisector = bisecting([rejected])
    assert bisector.take(under_way=0) == [rejected]
    assert bisector.closed([rejected]) is rejected
    letter = DeadLetter(rejected.message, "unpublishable")
    bisector.add(other)
    bisector.add(letter)
    assert bisector.take(under_way=0) == [other]
    assert bisector.take(under_way=1) == []
    assert bisector.take(under_way=0) == [letter]
    bisector.all_answered()
    assert not bisector.is_needed


def test_what_has_no_fingerprint_can_be_rejected_too() -> None:
    notice, same = SendNotice("q", "t", {}), SendNotice("q", "t", {})
    channel = Channel(bisecting([notice, same]), {id(same)})
    channel.drain()
    assert channel.taken == [notice]
    assert channel.rejected[0] is same
    channel.bisector.clear(same)
    assert not channel.bisector.is_needed


def test_the_next_session_knows_the_candidates_and_what_ended_the_connection() -> None:
    bisector = bisecting([copy(1), copy(2)])
    again = PublishBisector(bisector.state())
    assert bisector.state() == BisectState(frozenset({(1).to_bytes(16), (2).to_bytes(16)}), {})
    one, two, three = copy(1), copy(2), copy(3)
    for order in (three, one, two):
        again.add(order)
    assert again.take(under_way=0) == [three]
    assert again.take(under_way=0) == [one]
    assert again.closed([one]) is one
    again.reject(one, "541 INTERNAL_ERROR")
    last = PublishBisector(again.state())
    assert last.rejection(copy(1)) == "541 INTERNAL_ERROR"
    assert last.rejection(copy(2)) is None
    assert last.rejection(DeadLetter(message(1), "")) is None, "that is another publish: it is tried"


class Keeper:
    """A RefusedPublishRetry whose time passes when it is told to."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []
        self.due: list[Callable[[], None]] = []
        self.published: list[Any] = []
        self.retry = RefusedPublishRetry(self._later, self.published.append)

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self.delays_s.append(delay_s)
        self.due.append(act)

    def wait(self) -> list[Any]:
        """The next attempt's time has come; returns what is published."""
        self.published.clear()
        self.due.pop(0)()
        return list(self.published)


def test_what_was_refused_is_tried_one_at_a_time_less_and_less_often() -> None:
    keeper = Keeper()
    for name in ("a", "b", "c"):
        keeper.retry.refused(name)
    for name in ("a", "b", "c", "a", "b", "c", "a", "b"):
        assert keeper.wait() == [name]
        keeper.retry.refused(name)
        assert len(keeper.due) == 1
    assert keeper.delays_s[0] == RETRY_S_MIN
    assert keeper.delays_s[-1] == RETRY_S_MAX
    assert all(earlier <= later for earlier, later in pairwise(keeper.delays_s))


def test_once_one_is_taken_all_are_tried() -> None:
    keeper = Keeper()
    for name in ("a", "b", "c"):
        keeper.retry.refused(name)
    assert keeper.wait() == ["a"]
    keeper.retry.confirmed("another")
    assert keeper.published == ["a"]
    keeper.retry.confirmed("a")
    assert keeper.published == ["a", "b", "c"]
    keeper.retry.refused("c")
    assert keeper.delays_s[-1] == RETRY_S_MIN
    assert keeper.wait() == ["c"]


@pytest.mark.parametrize(
    ("closed", "blamed"),
    [
        (ConnectionClosed(541, "INTERNAL_ERROR"), True),  # the channel's process failed
        (ConnectionClosed(541, "INTERNAL_ERROR", 60, 40), True),
        (ConnectionClosed(541, "INTERNAL_ERROR - Cannot declare quorum queue", 50, 10), False),
        (ConnectionClosed(541, "INTERNAL_ERROR - Cannot get a message from queue", 60, 70), False),
        (ConnectionClosed(320, "CONNECTION_FORCED"), False),
    ],
)
def test_a_publish_is_not_blamed_for_what_rabbitmq_did_not_fail_at(
    closed: ConnectionClosed, blamed: bool
) -> None:
    assert ended_over_a_publish(closed) is blamed
