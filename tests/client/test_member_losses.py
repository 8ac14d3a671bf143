"""One incarnation over lost connections, notices, its leave and its end."""

from __future__ import annotations

import pytest

from dispatcher.client.member import (
    REMEMBERED_MAX,
    STANDING_TRANSITIONS,
    TAKEN_WAIT_MS,
    End,
    Standing,
    Wish,
)
from dispatcher.client.orders import OpenQueue, Publish
from dispatcher.client.pacing import Backoff
from dispatcher.errors import InvalidTransition
from dispatcher.wire.protocol import FailedMessage, Join, Leave
from tests.client.member_subject import OFFLINE_LIMIT_MS, Copy, Subject, ordered

# --- lost connections ---


def test_in_hand_survives_a_lost_connection(joined: Subject) -> None:
    joined.receive(Copy(1), *ordered(b"g", 1), Copy(3))
    joined.ack(3)
    joined.said(5)
    joined.lose_connection()
    joined.open("q2")
    (join,) = joined.said()
    assert [(entry.seq, entry.group) for entry in join.in_hand] == [(1, None), (101, b"g")]
    assert join.n == 2
    joined.ack(1)  # goes on as if nothing had happened


def test_unconfirmed_settles_are_repeated_before_the_join(joined: Subject) -> None:
    joined.receive(Copy(1), Copy(2))
    joined.ack(1)
    (order,) = joined.poll(5)
    assert isinstance(order, Publish)
    joined.lose_connection()
    joined.ack(2)
    joined.open("q2")
    repeated, newer, join = joined.said()
    assert repeated == order.message
    assert newer.acked == ((2, 2),)
    assert isinstance(join, Join)
    assert join.in_hand == ()


def test_a_connection_lost_in_a_gap_repeats_settles_too(joined: Subject) -> None:
    joined.receive(Copy(1))
    joined.ack(1)
    (order,) = joined.poll()
    assert isinstance(order, Publish)
    joined.receive(*ordered(b"g", 2))  # a gap: offline, over a connection that is up
    joined.lose_connection()
    joined.open("q2")
    assert joined.said()[0] == order.message


def waits_of(subject: Subject) -> list[int]:
    """Before eight attempts to connect, after the loss of a connection that worked."""
    subject.join()
    subject.lose_connection()
    waits = []
    for _ in range(8):
        deadline_ms = subject.member.next_deadline_ms()
        assert deadline_ms is not None
        waits.append(deadline_ms - subject.now_ms)
        assert isinstance(subject.poll(waits[-1])[0], OpenQueue)
        subject.lose_connection()  # the attempt failed
    return waits


def test_the_first_attempt_is_immediate_the_others_at_most_a_second_apart() -> None:
    waits = waits_of(Subject())
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] == 1_000


def test_up_to_half_of_each_pause_is_left_out() -> None:
    assert waits_of(Subject(left_out=1)) == [wait // 2 for wait in waits_of(Subject())]


def test_those_who_lost_one_broker_do_not_come_back_in_step() -> None:
    several = [Backoff() for _ in range(20)]
    for _ in range(8):
        pauses = [backoff.next_delay_ms() for backoff in several]
    assert len(set(pauses)) > 1
    assert all(500 <= pause <= 1_000 for pause in pauses)


def test_what_comes_from_a_lost_queue_is_not_handed_over(joined: Subject) -> None:
    joined.lose_connection()
    assert joined.receive(Copy(1)) == [False]


def test_too_long_without_a_connection_gives_up_what_is_in_hand(joined: Subject) -> None:
    joined.receive(Copy(1))
    joined.lose_connection()
    joined.poll()
    joined.poll(OFFLINE_LIMIT_MS - 1)
    assert joined.member.end is None
    joined.poll(1)
    assert joined.member.end is End.OFFLINE_TOO_LONG


def test_with_empty_hands_it_may_be_offline_for_ever(joined: Subject) -> None:
    joined.lose_connection()
    joined.poll()
    assert joined.member.next_deadline_ms() is None
    joined.poll(10 * OFFLINE_LIMIT_MS)
    assert joined.member.end is None


# --- notices ---


def test_rejoin_joins_again_with_the_same_queue(joined: Subject) -> None:
    joined.receive(Copy(1), Copy(2))
    joined.ack(1)
    joined.notice("rejoin")
    settle, join = joined.said()
    assert settle.acked == ((1, 1),)
    assert (join.n, join.queue) == (2, "q1")
    assert [entry.seq for entry in join.in_hand] == [2]
    assert joined.receive(Copy(3)) == [True]


def test_taken_is_the_end_and_nothing_is_settled_any_more(joined: Subject) -> None:
    joined.receive(Copy(1), Copy(2))
    joined.ack(1)
    joined.notice("taken")
    assert joined.member.end is End.TAKEN
    assert list(joined.member.in_hand) == [2]
    assert joined.said(100) == []
    assert joined.member.next_deadline_ms() is None


def test_taken_for_another_incarnation_is_ignored(joined: Subject) -> None:
    joined.notice("taken", incarnation="former")
    assert joined.member.end is None


# --- leaving ---


def test_leaving_says_so_finishes_settles_and_waits_for_taken(joined: Subject) -> None:
    joined.receive(Copy(1))
    joined.member.leave()
    assert joined.said() == [Leave(consumer="c1", incarnation="uuid-1")]
    assert joined.receive(Copy(2)) == [True], "it was on its way"
    joined.ack(1, 2)
    (settle,) = joined.said()
    assert settle.acked == ((1, 2),)
    joined.poll()
    assert joined.member.end is None
    joined.notice("taken")
    assert joined.member.end is End.TAKEN
    assert joined.member.wish is Wish.LEAVE


def test_without_taken_leaving_ends_by_itself(joined: Subject) -> None:
    joined.member.leave()
    joined.said()
    joined.poll()
    joined.poll(TAKEN_WAIT_MS)
    assert joined.member.end is End.LEFT


def test_leaving_waits_for_the_confirm_of_the_last_settle(joined: Subject) -> None:
    joined.receive(Copy(1))
    joined.member.leave()
    joined.said()
    joined.ack(1)
    (order,) = joined.poll()
    assert isinstance(order, Publish)
    joined.poll(10 * TAKEN_WAIT_MS)
    assert joined.member.end is None
    joined.member.confirmed(order.token)
    joined.poll()
    joined.poll(TAKEN_WAIT_MS)
    assert joined.member.end is End.LEFT


def test_leaving_goes_on_over_a_lost_connection(joined: Subject) -> None:
    joined.receive(Copy(1))
    joined.member.leave()
    joined.said()
    joined.lose_connection()
    joined.open("q2")
    join, leave = joined.said()
    assert isinstance(join, Join)
    assert isinstance(leave, Leave)


def test_leaving_before_anything_was_said_is_immediate(subject: Subject) -> None:
    subject.member.leave()
    assert subject.poll() == []
    assert subject.member.end is End.LEFT


# --- memory ---


def test_too_many_ranges_end_in_a_new_incarnation(joined: Subject) -> None:
    seqs = range(10, 10 + 2 * REMEMBERED_MAX, 2)
    joined.receive(*[Copy(seq) for seq in seqs])
    assert joined.member.wish is Wish.STAY
    joined.receive(Copy(1))
    assert joined.member.wish is Wish.RENEW
    assert any(isinstance(message, Leave) for message in joined.said())
    joined.member.share(5, joined.now_ms)  # the next incarnation says that: this one joins no more
    assert joined.member.standing is Standing.JOINED
    joined.ack(1, *seqs)
    joined.said()
    joined.poll()
    joined.poll(TAKEN_WAIT_MS)
    assert joined.member.end is End.LEFT


def test_too_many_failures_end_in_a_new_incarnation(joined: Subject) -> None:
    joined.receive(*[Copy(seq) for seq in range(REMEMBERED_MAX + 1)])
    for seq in range(REMEMBERED_MAX + 1):
        joined.member.failed(FailedMessage(seq=seq, reason="bad", attempts=1), joined.now_ms)
    assert joined.member.wish is Wish.RENEW


def test_a_transition_that_is_not_in_the_table_is_a_bug(joined: Subject) -> None:
    joined.notice("taken")
    with pytest.raises(InvalidTransition, match="can't go from over to"):
        joined.member._become(Standing.JOINED)
    assert set(STANDING_TRANSITIONS) == set(Standing)
