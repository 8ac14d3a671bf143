"""What has begun is told in time, and nothing more than that."""

from __future__ import annotations

import threading

from dispatcher.client.begun import BegunMessages
from dispatcher.wire.protocol import Begun


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
