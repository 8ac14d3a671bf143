"""Coalesced inbound acks: what is acked, in which order, and never twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.service.ack_window import (
    AWAITED_ACK_DELAY_US,
    AWAITED_BEFORE,
    FEW_BEFORE,
    SINGLE_ACK_DELAY_MS,
    SINGLE_ACK_DELAY_MS_MAX,
    SLICE_MIN,
    SLICE_MS,
    SPREAD_MS,
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
    window = _window(4, 2, prefetch=0)
    assert window.take(0) == [Ack(2, False)]
    window.settle(1)
    assert window.take(0) == [Ack(1, True)]
    window.settle(3)
    assert window.take(0) == [Ack(3, True)]


def test_single_acks_that_cost_much_wait_longer() -> None:
    """RabbitMQ walks over every unacked delivery before the one that is acked."""
    near, far = FEW_BEFORE, FEW_BEFORE + 3
    window = _window(far, near, far)
    window.take(0)
    assert window.take(SINGLE_ACK_DELAY_MS) == [Ack(near, False)]
    assert window.deadline_ms() is not None
    assert window.take(SINGLE_ACK_DELAY_MS_MAX - 1) == []
    assert window.take(SINGLE_ACK_DELAY_MS_MAX + SINGLE_ACK_DELAY_MS) == [Ack(far, False)]
    assert window.deadline_ms() is None


def test_who_awaits_what_a_full_prefetch_keeps_back_is_not_kept_waiting() -> None:
    """What may wait depends on the prefetch: a small one is used up in no time."""
    stuck, prefetch = FEW_BEFORE + 10, 100
    window = _window(90, *range(stuck + 1, 91), prefetch=prefetch)
    assert window.take(0) == []
    assert window.deadline_ms() == SINGLE_ACK_DELAY_MS
    assert window.take(0, awaited=True) == []
    soon_ms = prefetch * AWAITED_ACK_DELAY_US // 1_000 + 1
    assert window.deadline_ms() == soon_ms
    assert window.take(soon_ms - 1, awaited=True) == []
    assert window.take(soon_ms, awaited=True) == [Ack(tag, False) for tag in range(stuck + 1, 91)]
    assert window.deadline_ms() is None


def test_what_is_awaited_may_cost_more_but_not_any_price() -> None:
    near, far, prefetch = AWAITED_BEFORE, AWAITED_BEFORE + 3, AWAITED_BEFORE + 3
    window = _window(far, near, far, prefetch=prefetch)
    window.take(0, awaited=True)
    soon_ms = prefetch * AWAITED_ACK_DELAY_US // 1_000 + 1
    assert window.take(soon_ms, awaited=True) == [Ack(near, False)]
    assert window.take(SINGLE_ACK_DELAY_MS_MAX - 1, awaited=True) == []
    assert window.take(SINGLE_ACK_DELAY_MS_MAX + soon_ms, awaited=True) == [Ack(far, False)]


def test_nobody_awaits_what_rabbitmq_may_send_anyway() -> None:
    window = _window(89, *range(FEW_BEFORE + 10, 90), prefetch=100)
    assert window.take(0, awaited=True) == []
    assert window.take(SINGLE_ACK_DELAY_MS, awaited=True) == []
    window.deliver(1)
    assert window.take(SINGLE_ACK_DELAY_MS + 1, awaited=True) == []
    assert window.take(SINGLE_ACK_DELAY_MS + 4, awaited=True) != []


def test_what_nobody_awaits_may_wait() -> None:
    window = _window(100, 100, prefetch=100)
    for now_ms in range(0, SINGLE_ACK_DELAY_MS_MAX, 100):
        assert window.take(now_ms, awaited=False) == []


def test_many_that_are_due_go_a_few_at_a_time_so_that_deliveries_come_between() -> None:
    count = 1_000
    window = _window(count + 1, *range(2, count + 2))
    assert window.take(0) == []
    acked: list[int] = []
    now_ms = SINGLE_ACK_DELAY_MS_MAX + SINGLE_ACK_DELAY_MS  # no look before: they are found all at once
    end_ms = now_ms + SPREAD_MS * 6
    most = count * SLICE_MS // SPREAD_MS
    while window.deadline_ms() is not None and now_ms < end_ms:
        acks = window.take(now_ms)
        assert 1 <= len(acks) <= most
        assert window.take(now_ms) == []  # what wakes us up for other reasons changes nothing
        acked += [ack.tag for ack in acks]
        deadline_ms = window.deadline_ms()
        now_ms = now_ms + SLICE_MS if deadline_ms is None else deadline_ms
    assert acked == list(range(2, count + 2))


def test_what_is_awaited_while_slices_are_left_does_not_wake_us_up_for_nothing() -> None:
    prefetch = 200
    window = _window(prefetch, *range(101, prefetch + 1), prefetch=prefetch * 2)
    window.take(0)
    now_ms = SINGLE_ACK_DELAY_MS_MAX + SINGLE_ACK_DELAY_MS
    assert len(window.take(now_ms)) < 100, "slices are left"
    window.resize(prefetch)
    now_ms += 2 * SLICE_MS
    window.take(now_ms, awaited=True)
    deadline_ms = window.deadline_ms()
    assert deadline_ms is None or deadline_ms > now_ms


def test_few_that_are_due_go_at_once() -> None:
    window = _window(SLICE_MIN + 1, *range(2, SLICE_MIN + 2))
    window.take(0)
    assert len(window.take(SINGLE_ACK_DELAY_MS)) == SLICE_MIN


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


def test_behind_a_stuck_one_nothing_waits_for_it_any_more() -> None:
    early, near, far = AWAITED_BEFORE, AWAITED_BEFORE + 1, AWAITED_BEFORE + 5
    window = _window(far, early)
    window.take(0)
    stuck_ms = SINGLE_ACK_DELAY_MS_MAX + SINGLE_ACK_DELAY_MS
    assert window.take(stuck_ms) == [Ack(early, False)]
    window.settle(near)
    window.settle(far)
    assert window.take(stuck_ms) == []
    assert window.take(stuck_ms + SINGLE_ACK_DELAY_MS) == [Ack(near, False)]
    assert window.take(stuck_ms + SINGLE_ACK_DELAY_MS_MAX + SINGLE_ACK_DELAY_MS) == [Ack(far, False)]


def test_each_waits_from_its_own_settle() -> None:
    window = _window(3, 2)
    window.take(0)
    window.settle(3)
    window.take(SINGLE_ACK_DELAY_MS - 1)
    assert window.take(SINGLE_ACK_DELAY_MS) == [Ack(2, False)]
    assert window.take(2 * SINGLE_ACK_DELAY_MS) == [Ack(3, False)]


def test_many_settled_ones_behind_a_stuck_one_are_acked_at_once() -> None:
    window = _window(4, 2, 3, prefetch=2)
    assert window.take(0) == []
    window.settle(4)
    assert window.take(0) == [Ack(2, False), Ack(3, False), Ack(4, False)]


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
