"""Finding the publish over which RabbitMQ closes the channel, with as little disturbance as can be."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from dispatcher.core.model import Message
from dispatcher.core.orders import DeadLetter, SendNotice
from dispatcher.core.records import Dispatched
from dispatcher.service.caution import NO_SUSPICION, Caution, Suspicion
from dispatcher.service.kept_back import RETRY_S_MAX, RETRY_S_MIN, KeptBack


def message(number: int) -> Message:
    return Message(0, number, (7, number), number.to_bytes(16), b"g", object(), 100, 0)


def copy(number: int) -> Dispatched:
    return Dispatched(message(number), 1, "q", number, number, 1, 1)


class Channel:
    """A broker that closes the channel over the orders in `bad`, at the other end of a Caution."""

    def __init__(self, caution: Caution, bad: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.caution = caution
        self.bad = bad
        self.taken: list[Any] = []
        self.culprits: list[Any] = []
        self.closed = 0
        self.tries: list[int] = []

    def drain(self) -> None:
        """Until nothing waits; nothing is answered before the end of a batch, as it may be."""
        while orders := self.caution.take(under_way=0):
            self.tries.append(len(orders))
            refused = next((n for n, order in enumerate(orders) if id(order) in self.bad), None)
            if refused is None:
                self.taken += orders
                self.caution.all_answered()
                continue
            self.closed += 1
            culprit = self.caution.closed(orders)
            if culprit is not None:
                self.culprits.append(culprit)


def suspects(orders: list[Any]) -> Caution:
    """They were all unanswered when the channel was closed."""
    caution = Caution(NO_SUSPICION)
    assert caution.closed(orders) is None
    return caution


@pytest.mark.parametrize("place", [0, 1, 2, 3, 100, 500, 998, 999])
def test_the_culprit_is_found_among_a_thousand_and_the_order_is_kept(place: int) -> None:
    orders: list[Any] = [copy(number) for number in range(1_000)]
    behind = copy(5_000)
    channel = Channel(suspects(orders), {id(orders[place])})
    channel.caution.add(behind)
    channel.drain()
    assert channel.culprits == [orders[place]]
    assert channel.closed <= 12
    assert sum(channel.tries) < 2_600
    first = list(dict.fromkeys(map(id, channel.taken)))
    assert first == [id(order) for order in [*orders[:place], *orders[place + 1 :], behind]]


def test_several_culprits_are_found_one_after_another() -> None:
    orders: list[Any] = [copy(number) for number in range(50)]
    bad = [orders[n] for n in (0, 1, 20, 21, 49)]
    channel = Channel(suspects(orders), {id(order) for order in bad})
    channel.drain()
    assert channel.culprits == bad
    assert channel.taken == [order for order in orders if order not in bad]


def test_nobody_is_blamed_who_was_not_alone() -> None:
    one, two = copy(1), copy(2)
    caution = suspects([one, two])
    assert caution.take(under_way=3) == [], "the answers to what is under way come first"
    assert caution.take(under_way=0) == [one]
    assert caution.take(under_way=1) == []
    caution.all_answered()
    assert caution.take(under_way=0) == [two]
    other = copy(3)
    assert caution.closed([two, other]) is None


def test_what_was_answered_before_the_end_of_its_batch_is_innocent() -> None:
    orders: list[Any] = [copy(number) for number in range(4)]
    caution = suspects(orders)
    assert caution.take(under_way=0) == orders[:1]
    caution.all_answered()
    assert caution.take(under_way=0) == orders[1:3]
    assert caution.closed(orders[2:3]) is None, "it was not alone"
    assert caution.take(under_way=0) == orders[2:3]
    assert caution.closed(orders[2:3]) is orders[2]


def test_a_culprits_dead_letter_is_published_with_care() -> None:
    culprit, other = copy(1), copy(2)
    caution = suspects([culprit])
    assert caution.take(under_way=0) == [culprit]
    assert caution.closed([culprit]) is culprit
    letter = DeadLetter(culprit.message, "unpublishable")
    caution.add(other)
    caution.add(letter)
    assert caution.take(under_way=0) == [other]
    assert caution.take(under_way=1) == []
    assert caution.take(under_way=0) == [letter]
    caution.all_answered()
    assert not caution.is_needed


def test_what_has_no_fingerprint_can_be_a_culprit_too() -> None:
    notice, same = SendNotice("q", "t", {}), SendNotice("q", "t", {})
    channel = Channel(suspects([notice, same]), {id(same)})
    channel.drain()
    assert channel.taken == [notice]
    assert channel.culprits[0] is same
    channel.caution.acquit(same)
    assert not channel.caution.is_needed


def test_the_next_session_knows_the_suspects_and_who_ended_the_connection() -> None:
    caution = suspects([copy(1), copy(2)])
    again = Caution(caution.suspicion())
    assert caution.suspicion() == Suspicion(frozenset({(1).to_bytes(16), (2).to_bytes(16)}), {})
    one, two, three = copy(1), copy(2), copy(3)
    for order in (three, one, two):
        again.add(order)
    assert again.take(under_way=0) == [three]
    assert again.take(under_way=0) == [one]
    assert again.closed([one]) is one
    again.condemn(one, "541 INTERNAL_ERROR")
    last = Caution(again.suspicion())
    assert last.verdict(copy(1)) == "541 INTERNAL_ERROR"
    assert last.verdict(copy(2)) is None
    assert last.verdict(DeadLetter(message(1), "")) is None, "that is another publish: it is tried"


class Keeper:
    """A KeptBack whose time passes when it is told to."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []
        self.due: list[Callable[[], None]] = []
        self.published: list[Any] = []
        self.kept = KeptBack(self._later, self.published.append)

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self.delays_s.append(delay_s)
        self.due.append(act)

    def wait(self) -> list[Any]:
        """The next attempt's time has come; returns what is published."""
        self.published.clear()
        self.due.pop(0)()
        return list(self.published)


def test_what_is_kept_back_is_tried_one_at_a_time_less_and_less_often() -> None:
    keeper = Keeper()
    for name in ("a", "b", "c"):
        keeper.kept.keep(name)
    for name in ("a", "b", "c", "a", "b", "c", "a", "b"):
        assert keeper.wait() == [name]
        keeper.kept.keep(name)
        assert len(keeper.due) == 1
    assert keeper.delays_s[0] == RETRY_S_MIN
    assert keeper.delays_s[-1] == RETRY_S_MAX
    assert all(earlier <= later for earlier, later in pairwise(keeper.delays_s))


def test_once_one_is_taken_all_are_tried() -> None:
    keeper = Keeper()
    for name in ("a", "b", "c"):
        keeper.kept.keep(name)
    assert keeper.wait() == ["a"]
    keeper.kept.taken("another")
    assert keeper.published == ["a"]
    keeper.kept.taken("a")
    assert keeper.published == ["a", "b", "c"]
    keeper.kept.keep("c")
    assert keeper.delays_s[-1] == RETRY_S_MIN
    assert keeper.wait() == ["c"]
