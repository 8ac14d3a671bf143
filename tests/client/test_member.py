"""One incarnation, fact by fact: joining, work, duplicates and gaps."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.client.member import (
    GAP_INTERVAL_MS,
    HEARTBEAT_BEFORE_WELCOME_MS,
    End,
    Standing,
)
from dispatcher.client.orders import OpenQueue
from dispatcher.wire.protocol import Begun, FailedMessage, Heartbeat, Join, Settle, decode_control, encode
from tests.client.member_subject import Copy, Subject, ordered

# --- joining ---


def test_it_opens_a_queue_and_joins_with_it(subject: Subject) -> None:
    subject.open("q1")
    assert subject.said() == [Join(consumer="c1", incarnation="uuid-1", n=1, queue="q1", prefetch=10)]
    assert subject.member.standing is Standing.JOINING


def test_the_same_join_is_repeated_until_it_is_answered(subject: Subject) -> None:
    subject.open()
    (join,) = subject.said()
    assert subject.said(HEARTBEAT_BEFORE_WELCOME_MS - 1) == []
    assert subject.said(1) == [join]
    subject.welcome()
    assert subject.member.standing is Standing.JOINED
    assert not any(isinstance(message, Join) for message in subject.said(10_000))


def test_a_repeated_welcome_does_nothing(joined: Subject) -> None:
    joined.welcome()
    assert joined.said() == []


@pytest.mark.parametrize("body", [{"n": 0}, {"n": 2}, {"incarnation": "another"}])
def test_a_welcome_that_is_meant_for_another_join_does_not_count(subject: Subject, body: Any) -> None:
    subject.open()
    subject.said()
    subject.notice("welcome", **{"n": 1, "incarnation": "uuid-1", "heartbeat": 200} | body)
    assert subject.member.standing is Standing.JOINING


def test_after_wait_it_asks_again_within_a_second(subject: Subject) -> None:
    subject.open()
    (join,) = subject.said()
    subject.notice("wait")
    assert subject.said(1_000) == [join]


def test_refused_is_the_end(subject: Subject) -> None:
    subject.open()
    subject.said()
    subject.notice("refused", reason="prefetch too large")
    assert (subject.member.end, subject.member.end_reason) == (End.REFUSED, "prefetch too large")


def test_unknown_notices_are_ignored(joined: Subject) -> None:
    joined.notice("ping")
    joined.notice("of-a-later-protocol", anything=1)
    assert joined.member.standing is Standing.JOINED


# --- work ---


def test_heartbeats_come_as_often_as_the_welcome_says(joined: Subject) -> None:
    joined.receive(Copy(5), Copy(8))
    in_hand = ((5, 5), (8, 8))
    expected = Heartbeat(
        consumer="c1", incarnation="uuid-1", queue="q1", held=2, last=8, in_hand=in_hand,
        begun=Begun((), 1),
    )  # fmt: skip
    assert joined.said(199) == []
    assert joined.said(1) == [expected]
    assert joined.said(200) == [expected]


def test_settles_and_heartbeats_tell_what_has_begun_and_how_many_run_at_a_time(joined: Subject) -> None:
    copies = [Copy(seq) for seq in range(1, 8)]
    joined.receive(*copies)
    joined.member.begun.concurrency = 4
    for copy in copies[:3] + copies[4:5]:
        copy.begin()
    (heartbeat,) = joined.said(200)
    assert heartbeat.begun == Begun(((1, 3), (5, 5)), 4)
    joined.ack(2)
    (settle,) = joined.said(5)
    assert settle.begun == Begun(((1, 1), (3, 3), (5, 5)), 4)


def test_what_has_ended_is_not_begun_any_more(joined: Subject) -> None:
    copies = [Copy(seq) for seq in range(1, 5)]
    joined.receive(*copies)
    for copy in copies[:3]:
        copy.begin()
    joined.ack(1)
    assert joined.member.failed(FailedMessage(seq=2, reason="bad", attempts=1), joined.now_ms)
    (settle,) = joined.said(5)
    assert settle.begun == Begun(((3, 3),), 1)
    assert joined.member.abandon() == copies[2:]
    (heartbeat,) = joined.said(200)
    assert heartbeat.begun == Begun((), 1)


def test_the_dispatcher_hears_at_once_of_more_than_it_may_take_as_begun(joined: Subject) -> None:
    copies = [Copy(seq) for seq in range(1, 9)]
    joined.receive(*copies)
    copies[0].begin()
    assert joined.said(100) == [], "one that was taken needs no word"
    copies[1].begin()
    assert joined.said() == [
        Settle(consumer="c1", incarnation="uuid-1", begun=Begun(((1, 2),), 1)),
    ], "not a heartbeat: these have a rhythm"
    for copy in copies[2:6]:
        copy.begin()
    assert joined.said(4) == [], "one word for several"
    (word,) = joined.said(1)
    assert word.begun == Begun(((1, 6),), 1)
    copies[6].begin()
    copies[7].begin()
    joined.ack(3)
    (settle,) = joined.said(5)
    assert (settle.acked, settle.begun) == (((3, 3),), Begun(((1, 2), (4, 8)), 1)), "a settle says it as well"
    assert joined.said(5) == []


def test_what_begins_again_needs_no_new_word(joined: Subject) -> None:
    copies = [Copy(seq) for seq in (1, 2)]
    joined.receive(*copies)
    for copy in copies:
        copy.begin()
    assert len(joined.said(5)) == 1
    for copy in copies:
        copy.begin()
    assert joined.said(100) == []


def test_what_has_begun_is_told_over_the_next_connection_when_that_is_welcomed(joined: Subject) -> None:
    copies = [Copy(seq) for seq in (1, 2)]
    joined.receive(*copies)
    joined.lose_connection()
    for copy in copies:
        copy.begin()
    joined.open("q2")
    (join,) = joined.said(100)
    assert isinstance(join, Join)
    joined.welcome()
    heartbeat, word = joined.said()
    assert (type(heartbeat), heartbeat.begun) == (Heartbeat, Begun(((1, 2),), 1))
    assert (type(word), word.begun) == (Settle, heartbeat.begun), "the heartbeat may be dropped"
    assert joined.said(5) == []
    joined.lose_connection()
    joined.open("q3")
    joined.welcome()
    assert Settle(consumer="c1", incarnation="uuid-1", begun=heartbeat.begun) in joined.said(), "lost with it"


def test_a_settle_of_an_earlier_connection_says_nothing_new_of_handlers(joined: Subject) -> None:
    copies = [Copy(seq) for seq in (1, 2)]
    joined.receive(*copies)
    joined.ack(1)
    joined.poll(5)
    joined.member.connection_lost("gone", joined.now_ms)
    copies[1].begin()
    joined.open("q2")
    (settle, _) = joined.said()
    assert settle.begun == Begun((), 1)


def test_a_finished_message_is_settled_within_milliseconds(joined: Subject) -> None:
    joined.receive(*[Copy(seq) for seq in (1, 2, 3)])
    joined.ack(1)
    assert joined.said() == []
    (settle,) = joined.said(5)
    assert settle.acked == ((1, 1),)


def test_nothing_left_in_hand_settles_at_once(joined: Subject) -> None:
    joined.receive(Copy(1))
    joined.ack(1)
    assert joined.said() == [Settle(consumer="c1", incarnation="uuid-1", acked=((1, 1),), begun=Begun((), 1))]


def test_half_a_prefetch_settles_at_once(joined: Subject) -> None:
    joined.receive(*[Copy(seq) for seq in range(1, 8)])
    joined.ack(1, 2, 3, 4)
    assert joined.said() == []
    joined.ack(5)
    (settle,) = joined.said()
    assert settle.acked == ((1, 5),)


def test_a_failed_message_carries_reason_and_attempts(joined: Subject) -> None:
    joined.receive(Copy(1))
    failed = FailedMessage(seq=1, reason="no such customer", attempts=3)
    assert joined.member.failed(failed, joined.now_ms)
    (settle,) = joined.said()
    assert settle.failed == (failed,)


def test_only_what_is_in_hand_can_be_finished(joined: Subject) -> None:
    joined.receive(Copy(1))
    joined.ack(1)
    assert not joined.member.acked(1, joined.now_ms)
    assert not joined.member.acked(2, joined.now_ms)
    assert not joined.member.failed(FailedMessage(seq=1, reason="", attempts=1), joined.now_ms)


# --- rule 4 ---


def test_a_known_copy_that_is_in_hand_is_ignored(joined: Subject) -> None:
    assert joined.receive(Copy(1), Copy(1)) == [True, False]
    assert joined.said(100) == []


def test_a_known_copy_that_is_finished_is_settled_again(joined: Subject) -> None:
    joined.receive(Copy(1))
    joined.ack(1)
    first = joined.said()
    assert joined.receive(Copy(1)) == [False]
    assert joined.said() == first


def test_a_missing_copy_stops_the_queue_and_joins_with_a_new_one(joined: Subject) -> None:
    one, two, three = ordered(b"g", 1, 2, 3)
    assert joined.receive(one, three, two, Copy(900)) == [True, False, False, False]
    joined.open("q2")
    (join,) = joined.said()
    assert (join.n, join.queue, join.incarnation) == (2, "q2", "uuid-1")
    assert [entry.seq for entry in join.in_hand] == [one.seq]
    joined.welcome()
    assert joined.receive(two, three) == [True, True]


def test_a_join_tells_the_highest_epoch() -> None:
    subject = Subject()
    subject.join()
    subject.receive(Copy(1, b"g", 1, 7), Copy(2, b"h", 1, 5), Copy(3, b"g", 2, 9))
    subject.open("q2")
    (join,) = subject.said()
    assert decode_control(encode(join)) == join
    assert join.epoch == 7, "that of a copy that it refused does not count"


def test_a_second_gap_at_once_waits_before_it_asks_again(joined: Subject) -> None:
    (two,) = ordered(b"g", 2)
    joined.receive(two)
    joined.open("q2")
    joined.said()
    joined.welcome()
    joined.receive(two)
    assert joined.said() == []
    assert joined.member.next_deadline_ms() == joined.now_ms + GAP_INTERVAL_MS
    assert isinstance(joined.poll(GAP_INTERVAL_MS)[0], OpenQueue)


def test_without_a_group_seq_there_is_no_order_to_check(joined: Subject) -> None:
    assert joined.receive(Copy(9, b"g", 0, 7), Copy(3, b"g", 0, 7), Copy(4)) == [True, True, True]
