"""What is sent again to a consumer, and what waits behind it. Seed 7277 of the simulator needs it."""

from __future__ import annotations

from typing import Any

from dispatcher.core.records import Dispatched
from dispatcher.service.resends import Resends


def copy(queue: str, seq: int) -> Dispatched:
    message: Any = object()
    return Dispatched(message, 1, queue, seq, 1, 1, 1, False)


def test_what_is_new_waits_for_the_answers_to_all_that_were_sent_again_to_its_queue() -> None:
    resends, first, second = Resends(), copy("q", 1), copy("q", 2)
    new, newer, other = copy("q", 3), copy("q", 4), copy("other", 1)
    resends.sent(first)
    assert not resends.keeps(first)
    resends.sent(second)
    assert not resends.keeps(second)
    assert (resends.keeps(new), resends.keeps(newer), resends.keeps(other)) == (True, True, False)
    assert len(resends) == 2
    assert resends.answered(other, nacked=True) == ([], True)
    assert resends.answered(second, nacked=False) == ([], True)
    assert resends.answered(first, nacked=False) == ([new, newer], True)
    assert not resends
    assert not resends.keeps(copy("q", 5))


def test_after_a_refusal_it_is_not_to_be_sent() -> None:
    """Its consumer joins again, and gets what it does not name."""
    resends, first, second, new = Resends(), copy("q", 1), copy("q", 2), copy("q", 3)
    resends.sent(first)
    resends.sent(second)
    resends.keeps(new)
    resends.answered(first, nacked=True)
    assert resends.answered(second, nacked=False) == ([new], False)
    resends.sent(first)
    resends.keeps(new)
    assert resends.answered(first, nacked=False) == ([new], True), "a refusal counts once"


def test_a_closed_channel_answers_nothing_any_more() -> None:
    resends, first, new = Resends(), copy("q", 1), copy("q", 2)
    resends.sent(first)
    resends.keeps(new)
    assert resends.take_all() == [new]
    assert resends.answered(first, nacked=False) == ([], True)
    assert (bool(resends), len(resends)) == (False, 0)
