"""Coalesced inbound acks: what is acked, in which order, and never twice."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.service.ack_window import (
    AWAITED_ACK_DELAY_US,
    AWAITED_BUDGET_PERCENT,
    BEFORE_US,
    BUDGET_PERCENT,
    MANY,
    PORTION_US,
    SINGLE_ACK_DELAY_MS,
    SINGLE_ACK_US,
    SPARING_PERCENT,
    UNPROVEN_MAX,
    Ack,
    AckWindow,
)


def _window(delivered: int, *settled: int, prefetch: int = 1_000_000) -> AckWindow:
    window = AckWindow(prefetch=prefetch)
    window.deliver(delivered)
    for tag in settled:
        window.settle(tag)
    return window


def test_one_multiple_ack_covers_everything_up_to_the_lowest_unsettled() -> None:
    assert _window(9, 1, 2, 3, 5).take(0) == [Ack(3, True)]
    assert _window(3, 3, 1, 2).take(0) == [Ack(3, True)]


def test_settled_ones_behind_a_stuck_one_wait_for_it_and_go_singly_when_due() -> None:
    window = _window(3, 3, 2)
    assert window.take(100) == []
    assert window.deadline_ms() == 100 + SINGLE_ACK_DELAY_MS
    assert window.take(100 + SINGLE_ACK_DELAY_MS) == [Ack(2, False), Ack(3, False)]
    assert window.deadline_ms() is None


def test_what_waits_goes_with_the_one_that_it_waited_for() -> None:
    window = _window(5, 2, 3, 5)
    assert window.take(0) == []
    window.settle(1)
    assert window.take(1) == [Ack(3, True)]
    window.settle(4)
    assert window.take(2) == [Ack(5, True)]
    assert window.deadline_ms() is None


def test_a_multiple_ack_never_names_a_tag_that_was_acked_singly() -> None:
    window = _window(4, 2)
    window.take(0)
    assert window.take(SINGLE_ACK_DELAY_MS) == [Ack(2, False)]
    window.settle(1)
    assert window.take(SINGLE_ACK_DELAY_MS) == [Ack(1, True)]
    window.settle(3)
    assert window.take(SINGLE_ACK_DELAY_MS) == [Ack(3, True)]


def _spent_us(acks: list[Ack], before: int) -> float:
    """What RabbitMQ spends on single acks with so many unsettled deliveries before each."""
    return sum(SINGLE_ACK_US + before * BEFORE_US for _ in acks)


def _acked_until(window: AckWindow, now_ms: int, end_ms: int, *, awaited: bool = False) -> list[Ack]:
    """The single acks from now on, taken whenever they are due."""
    acks: list[Ack] = []
    while now_ms <= end_ms:
        acks += window.take(now_ms, awaited=awaited)
        deadline_ms = window.deadline_ms()
        if deadline_ms is None:
            return acks
        assert deadline_ms > now_ms, "it would be called again at once"
        now_ms = deadline_ms
    return acks


@pytest.mark.parametrize("before", [0, 1_000, 5_000])
@pytest.mark.parametrize(("count", "percent"), [(4_000, SPARING_PERCENT), (MANY + 4_000, BUDGET_PERCENT)])
def test_single_acks_cost_rabbitmq_a_part_of_its_time_at_any_depth(
    before: int, count: int, percent: int
) -> None:
    """It walks over every unacked delivery before the one that is acked."""
    begun_ms, lasts_ms = 1_000, 500
    window = _window(before + count + 1, *range(before + 2, before + count + 2))
    window.take(0)
    acks = _acked_until(window, begun_ms, begun_ms + lasts_ms)
    dearest_us = SINGLE_ACK_US + (before + 1) * BEFORE_US
    allowed_us = PORTION_US + lasts_ms * 10 * percent + dearest_us
    assert allowed_us - 2 * dearest_us - 1_000 * percent // 100 <= _spent_us(acks, before + 1) <= allowed_us
    assert [ack.tag for ack in acks] == list(range(before + 2, before + 2 + len(acks))), "lowest first"


def test_what_somebody_awaits_may_cost_more() -> None:
    count, lasts_ms = 20_000, 500
    window = _window(count, *range(1_001, count + 1), prefetch=count)
    window.take(0)
    acks = _acked_until(window, 1_000, 1_000 + lasts_ms, awaited=True)
    allowed_us = PORTION_US + lasts_ms * 10 * AWAITED_BUDGET_PERCENT + SINGLE_ACK_US + 1_000 * BEFORE_US
    assert 0.9 * allowed_us <= _spent_us(acks, 1_000) <= allowed_us


def test_who_awaits_what_a_full_prefetch_keeps_back_is_not_kept_waiting() -> None:
    """What may wait depends on the prefetch: a small one is used up in no time."""
    prefetch = 100
    window = _window(90, *range(61, 91), prefetch=prefetch)
    assert window.take(0) == []
    assert window.deadline_ms() == SINGLE_ACK_DELAY_MS
    assert window.take(0, awaited=True) == []
    soon_ms = -(-prefetch * AWAITED_ACK_DELAY_US // 1_000)
    assert window.deadline_ms() == soon_ms
    assert window.take(soon_ms - 1, awaited=True) == []
    assert window.take(soon_ms, awaited=True) == [Ack(tag, False) for tag in range(61, 91)]
    assert window.deadline_ms() is None


def test_nobody_awaits_what_rabbitmq_may_send_anyway() -> None:
    window = _window(89, *range(60, 90), prefetch=100)
    assert window.take(0, awaited=True) == []
    assert window.take(SINGLE_ACK_DELAY_MS - 1, awaited=True) == []
    window.deliver(1)
    assert window.take(SINGLE_ACK_DELAY_MS - 1, awaited=True) != []


def test_another_consumer_of_the_channel_has_its_whole_prefetch_free() -> None:
    window = _window(100, *range(51, 101), prefetch=100)
    window.take(0)
    assert window.is_nearly_full
    window.begin_consumer(50)
    assert not window.is_nearly_full
    window.deliver(44)
    assert not window.is_nearly_full
    for tag in range(1, 51):  # acks of what the former one had are no room of this one
        window.settle(tag)
    assert window.take(1) == [Ack(100, True)]
    window.deliver(1)
    assert window.is_nearly_full
    assert window.unacked == window.unsettled == 45


def test_acks_that_hold_up_the_proof_of_very_many_go_at_any_price() -> None:
    before = 100_000
    window = _window(before + 1, before + 1)
    window.take(0)
    now_ms = SINGLE_ACK_DELAY_MS
    assert window.take(now_ms) == [Ack(before + 1, False)]  # on credit
    window = _window(before + 2, before + 1, before + 2)
    window.take(0)
    assert window.take(now_ms) == [Ack(before + 1, False)]
    for tag in range(1, UNPROVEN_MAX + 1):
        window.settle(tag)
    assert window.take(now_ms) == [Ack(UNPROVEN_MAX, True)]
    assert window.take_acked() == 1
    window.settle(UNPROVEN_MAX + 1)
    assert window.take(now_ms) == [Ack(UNPROVEN_MAX + 1, True), Ack(before + 2, False)]
    assert window.take_acked() == UNPROVEN_MAX + 2


def test_what_waits_is_counted_from_its_settle_on() -> None:
    window = _window(4, 3)
    assert (window.waiting, window.waits_since_ms()) == (0, None)
    window.take(5)
    window.settle(4)
    window.take(7)
    assert (window.waiting, window.waits_since_ms()) == (2, 5)
    window.take(5 + SINGLE_ACK_DELAY_MS)
    assert (window.waiting, window.waits_since_ms()) == (1, 7)
    window.settle(1)
    window.settle(2)
    window.take(8 + SINGLE_ACK_DELAY_MS)
    assert (window.waiting, window.waits_since_ms()) == (0, None)


def test_a_stuck_one_in_front_costs_no_memory() -> None:
    """Whatever is acked singly behind it is forgotten."""
    window = AckWindow(prefetch=1_000)
    window.deliver(1)
    sizes = []
    for number in range(400):
        window.deliver(100)
        for tag in range(100 * number + 2, 100 * number + 102):
            window.settle(tag)
        window.take(number * SINGLE_ACK_DELAY_MS)
        window.take_acked()
        sizes.append(len(pickle.dumps(window)))
    assert max(sizes[200:]) < 1.5 * max(sizes[:200])


def test_what_was_to_be_acked_singly_is_covered_by_a_multiple_ack_that_comes_first() -> None:
    window = _window(50, *range(2, 51))
    window.take(0)
    broker = Broker(50)
    for ack in window.take(SINGLE_ACK_DELAY_MS):
        broker.obey(ack)
    window.settle(1)
    for ack in window.take(SINGLE_ACK_DELAY_MS + 1):
        broker.obey(ack)
    assert not broker.unacked
    assert window.deadline_ms() is None


def test_each_waits_from_its_own_settle() -> None:
    window = _window(3, 2)
    window.take(0)
    window.settle(3)
    window.take(SINGLE_ACK_DELAY_MS - 1)
    assert window.take(SINGLE_ACK_DELAY_MS) == [Ack(2, False)]
    assert window.take(2 * SINGLE_ACK_DELAY_MS) == [Ack(3, False)]


def test_taking_everything_leaves_nothing_waiting() -> None:
    window = _window(7, 7)
    assert window.take(0, everything=True) == [Ack(7, False)]
    assert window.deadline_ms() is None


def test_only_what_was_acked_is_reported_in_the_order_of_the_settles() -> None:
    window = _window(6, 1, 3, 2)
    assert window.take_acked() == 0  # nothing is acked before `take`
    window.take(0)
    assert window.take_acked() == 3
    window.settle(6)
    window.take(1)
    window.settle(4)
    window.take(2)
    assert window.take_acked() == 0  # 6 waits, and 4 was settled after it
    assert window.unproven
    window.settle(5)
    window.take(3)
    assert window.take_acked() == 3
    assert not window.unproven


class Broker:
    """What RabbitMQ makes of acks: a tag that is not unacked closes the channel."""

    def __init__(self, delivered: int) -> None:
        self.unacked = set(range(1, delivered + 1))

    def obey(self, ack: Ack) -> None:
        assert ack.tag in self.unacked, f"unknown delivery tag {ack.tag}"
        if ack.multiple:
            self.unacked -= {tag for tag in self.unacked if tag <= ack.tag}
        else:
            self.unacked.discard(ack.tag)


@given(
    order=st.permutations(range(1, 31)),
    cuts=st.lists(st.integers(0, 30), max_size=8),
    prefetch=st.integers(0, 8),
    data=st.data(),
)
def test_whatever_the_order_each_settled_delivery_is_acked_once_and_no_other(
    order: list[int], cuts: list[int], prefetch: int, data: st.DataObject
) -> None:
    window, broker, now_ms = _window(30, prefetch=prefetch), Broker(30), 0
    settled: list[int] = []
    acked = 0
    for position, tag in enumerate(order):
        window.settle(tag)
        settled.append(tag)
        if position in cuts:
            now_ms += data.draw(st.integers(0, SINGLE_ACK_DELAY_MS))
            for ack in window.take(now_ms, awaited=data.draw(st.booleans())):
                broker.obey(ack)
            assert set(range(1, 31)) - broker.unacked <= set(settled)
            acked += window.take_acked()
            assert not set(settled[:acked]) & broker.unacked
    for ack in window.take(now_ms, everything=True):
        broker.obey(ack)
    assert not broker.unacked
    assert acked + window.take_acked() == 30
