"""What has begun is told in time, and nothing more than that."""

from __future__ import annotations

import asyncio
import threading

from dispatcher.client import BlockingMessage, Message
from dispatcher.client.begun import SMALL, TOLD_WITHIN_S, BegunMessages
from dispatcher.client.orders import Publish
from dispatcher.client.retries import RetryPolicy
from dispatcher.client.runner import Runner, until_told
from dispatcher.client.settling import COALESCE_MS
from dispatcher.client.thread_runner import wait_until_told
from dispatcher.wire.protocol import Begun
from tests.client.member_subject import Copy, Subject


def test_a_word_is_due_when_more_has_begun_than_the_dispatcher_assumes() -> None:
    wakes: list[None] = []
    begun = BegunMessages(2, lambda: wakes.append(None))
    for seq in (5, 6):
        begun.add(seq)
    assert not begun.word_is_due
    assert not wakes
    begun.add(7)
    assert begun.word_is_due
    assert len(wakes) == 1
    begun.discard(5)
    assert not begun.word_is_due
    assert begun.tell() == Begun(((6, 7),), 2)
    for seq in (6, 7, 8, 9):
        begun.add(seq)
    assert not begun.word_is_due, "what it was told counts no more"


def test_what_may_not_arrive_tells_nothing() -> None:
    """Heartbeats are dropped where too many wait; a settle may be lost with its connection."""
    begun = BegunMessages(1, lambda: None)
    for seq in (5, 6):
        begun.add(seq)
    assert begun.mention() == Begun(((5, 6),), 1)
    assert begun.word_is_due
    begun.tell()
    assert not begun.word_is_due
    begun.connection_lost()
    assert begun.word_is_due
    assert begun.tell() == Begun(((5, 6),), 1)


def test_threads_may_begin_messages_while_they_are_told() -> None:
    begun = BegunMessages(1, lambda: None)
    start = threading.Barrier(5)

    def begin(offset: int) -> None:
        start.wait()
        for seq in range(offset, 20_000, 4):
            begun.add(seq)

    threads = [threading.Thread(target=begin, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    while any(thread.is_alive() for thread in threads):
        begun.tell()
    assert begun.tell().ranges == ((0, 19_999),)


# --- messages of which consumers may have died ---


def _received(subject: Subject, count: int) -> list[Copy]:
    copies = [Copy(seq) for seq in range(1, count + 1)]
    subject.receive(*copies)
    return copies


def _waits(subject: Subject) -> list[None]:
    """Ask for a word; the list has one entry for each answer."""
    answers: list[None] = []
    subject.member.begun.tell_now(lambda: answers.append(None))
    return answers


def test_a_word_that_is_waited_for_goes_at_once_and_counts_when_it_is_confirmed(joined: Subject) -> None:
    (copy,) = _received(joined, 1)
    copy.begin()
    answers = _waits(joined)
    (order,) = joined.poll()
    assert isinstance(order, Publish)
    assert order.message.begun == Begun(((1, 1),), 1)
    assert not answers
    joined.member.confirmed(order.token)
    assert len(answers) == 1
    assert joined.poll() == []


def test_such_a_word_takes_settles_along(joined: Subject) -> None:
    """They would stand before it: as if the message had not begun."""
    copies = _received(joined, 2)
    joined.ack(1)
    copies[1].begin()
    answers = _waits(joined)
    (order,) = joined.poll()
    assert isinstance(order, Publish)
    assert (order.message.acked, order.message.begun) == (((1, 1),), Begun(((2, 2),), 1))
    joined.member.confirmed(order.token)
    assert len(answers) == 1


def test_nobody_waits_for_a_word_that_can_not_come_soon(joined: Subject) -> None:
    copies = _received(joined, 2 * SMALL)
    copies[0].begin()
    before = _waits(joined)
    joined.poll()  # on its way when the connection breaks
    joined.lose_connection()
    assert len(before) == 1
    offline = _waits(joined)
    joined.poll()
    assert len(offline) == 1
    joined.member.queue_opened("q2", joined.now_ms)
    joined.said()
    joined.welcome()
    joined.said()
    for copy in copies:
        copy.begin()
    crowd = _waits(joined)
    joined.poll()
    assert len(crowd) == 1


class _Told(BegunMessages):
    """Calls back when the test says so."""

    def __init__(self) -> None:
        super().__init__(1, lambda: None)

    def answer(self) -> None:
        for told in self.take_awaited():
            told()


def _message(attempt: int, told: BegunMessages, kind: type = Message) -> Message:
    message = kind((1, b"g", 1, 1, attempt, None, b"\0" * 16), b"\0\0", b"", lambda *_: True)
    message.note_in(told)
    return message  # type: ignore[no-any-return]


async def test_a_handler_begins_when_the_dispatcher_was_told_if_its_message_was_handed_over_before() -> None:
    told, handled = _Told(), list[Message]()

    async def handle(message: Message) -> None:
        handled.append(message)

    runner = Runner(handle, 2, RetryPolicy)
    runner.add([_message(1, told)])
    await runner.idle()
    assert len(handled) == 1
    assert not told.is_awaited
    runner.add([_message(2, told)])
    while not told.is_awaited:  # noqa: ASYNC110 - its answer is what the test decides
        await asyncio.sleep(0)
    assert len(handled) == 1
    told.answer()
    await runner.idle()
    assert len(handled) == 2


async def test_no_handler_waits_for_long() -> None:
    await asyncio.wait_for(until_told(_message(2, _Told())), 100 * TOLD_WITHIN_S)
    wait_until_told(_message(2, _Told(), BlockingMessage))  # type: ignore[arg-type]


# --- many at a time ---


def test_of_many_messages_the_word_does_not_go_with_each_settle(joined: Subject) -> None:
    """It would cost as much as they are many, each time."""
    count = 32 * SMALL
    joined.member.begun.concurrency = count
    copies = _received(joined, 2 * count)
    for copy in copies[:count]:
        copy.begin()
    joined.said(COALESCE_MS)
    said = []
    lasts_ms = 1_000
    for seq in range(1, lasts_ms // COALESCE_MS + 1):
        joined.ack(seq)
        copies[count + seq].begin()
        said += [settle.begun for settle in joined.said(COALESCE_MS) if hasattr(settle, "acked")]
    words = [begun for begun in said if begun is not None]
    assert len(said) == lasts_ms // COALESCE_MS
    assert 2 <= len(words) <= 1 + lasts_ms * SMALL // (COALESCE_MS * count)


def test_of_few_messages_each_settle_has_the_word(joined: Subject) -> None:
    copies = _received(joined, 2 * SMALL)
    for copy in copies[:SMALL]:
        copy.begin()
    for seq in range(1, 10):
        joined.ack(seq)
        (settle,) = (each for each in joined.said(COALESCE_MS) if getattr(each, "acked", ()))
        assert settle.begun is not None
