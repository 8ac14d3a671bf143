"""Finished messages are told in few words, exactly, and again when in doubt."""

from __future__ import annotations

from dispatcher.client.settling import COALESCE_MS, FAILED_PER_SETTLE_MAX, Settling
from dispatcher.wire.protocol import FailedMessage


def settling(full_count: int = 100) -> Settling:
    return Settling("c1", "uuid", full_count=full_count)


def failure(seq: int) -> FailedMessage:
    return FailedMessage(seq=seq, reason="bad", attempts=3)


def test_what_is_finished_waits_a_few_milliseconds_for_company() -> None:
    told = settling()
    told.ack(1, now_ms=100)
    told.ack(2, now_ms=103)
    assert told.due_at_ms(nothing_in_hand=False) == 100 + COALESCE_MS
    (settle,) = told.take()
    assert settle.acked == ((1, 2),)
    assert told.due_at_ms(nothing_in_hand=False) is None


def test_half_a_prefetch_or_empty_hands_do_not_wait() -> None:
    told = settling(full_count=2)
    told.ack(1, now_ms=100)
    assert told.due_at_ms(nothing_in_hand=True) == 0
    told.ack(9, now_ms=100)
    assert told.due_at_ms(nothing_in_hand=False) == 0


def test_ranges_name_only_what_is_finished() -> None:
    told = settling()
    for seq in (5, 1, 2, 7):
        told.ack(seq, now_ms=0)
    told.fail(failure(6), now_ms=0)
    (settle,) = told.take()
    assert settle.acked == ((1, 2), (5, 5), (7, 7))
    assert settle.failed == (failure(6),)


def test_an_unconfirmed_settle_is_told_again_before_anything_newer() -> None:
    told = settling()
    told.ack(1, now_ms=0)
    (first,) = told.take()
    told.sent(11, first)
    told.ack(2, now_ms=0)
    told.connection_lost()
    assert told.due_at_ms(nothing_in_hand=False) == 0
    repeated, newer = told.take()
    assert repeated == first
    assert newer.acked == ((2, 2),)


def test_a_confirmed_settle_is_over() -> None:
    told = settling()
    told.ack(1, now_ms=0)
    told.sent(11, *told.take())
    assert not told.done
    told.confirmed(11)
    assert told.done
    told.connection_lost()
    assert told.take() == []


def test_a_late_confirm_of_a_lost_connection_means_nothing() -> None:
    told = settling()
    told.ack(1, now_ms=0)
    told.sent(11, *told.take())
    told.connection_lost()
    told.confirmed(11)
    assert not told.done


def test_a_copy_that_comes_again_is_settled_as_before() -> None:
    told = settling()
    told.ack(1, now_ms=0)
    told.fail(failure(2), now_ms=0)
    told.take()
    told.again(1, now_ms=9)
    told.again(2, now_ms=9)
    (settle,) = told.take()
    assert settle.acked == ((1, 1),)
    assert settle.failed == (failure(2),)


def test_many_failures_go_in_several_messages() -> None:
    told = settling()
    count = 2 * FAILED_PER_SETTLE_MAX + 1
    for seq in range(1, count + 1):
        told.fail(failure(seq), now_ms=0)
    told.ack(count + 1, now_ms=0)
    settles = told.take()
    assert [len(settle.failed) for settle in settles] == [FAILED_PER_SETTLE_MAX, FAILED_PER_SETTLE_MAX, 1]
    assert [len(settle.acked) for settle in settles] == [1, 0, 0]


def test_what_remains_can_be_adopted_by_the_next_incarnation() -> None:
    former, following = settling(), Settling("c1", "next", full_count=1)
    former.ack(1, now_ms=0)
    former.sent(1, *former.take())
    former.ack(2, now_ms=0)
    following.adopt(former.remaining())
    assert [settle.acked for settle in following.take()] == [((1, 1),), ((2, 2),)]
    assert former.done
