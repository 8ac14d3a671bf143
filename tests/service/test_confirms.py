"""Which publishes a confirm answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.amqp.events import Confirmed
from dispatcher.service.confirms import PublishWindow


def window_of(count: int) -> PublishWindow:
    window = PublishWindow()
    for tag in range(1, count + 1):
        window.add(tag, f"publish {tag}")
    return window


def test_a_multiple_confirm_answers_all_before_it_in_order() -> None:
    window = window_of(5)
    assert list(window.answered(Confirmed(1, 3, True, False))) == ["publish 1", "publish 2", "publish 3"]
    assert len(window) == 2


def test_a_single_confirm_answers_one_and_a_later_multiple_skips_it() -> None:
    window = window_of(4)
    assert list(window.answered(Confirmed(1, 2, False, False))) == ["publish 2"]
    assert list(window.answered(Confirmed(1, 4, True, False))) == ["publish 1", "publish 3", "publish 4"]
    assert len(window) == 0


def test_a_confirm_for_something_unknown_answers_nothing() -> None:
    window = window_of(1)
    assert list(window.answered(Confirmed(1, 9, False, False))) == []
    assert len(window) == 1


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=60))
def test_every_publish_is_answered_exactly_once(confirms: list[tuple[int, bool]]) -> None:
    window = window_of(40)
    answered = [
        token for tag, multiple in confirms for token in window.answered(Confirmed(1, tag, multiple, False))
    ]
    answered += list(window.answered(Confirmed(1, 40, True, False)))
    assert sorted(answered) == sorted(f"publish {tag}" for tag in range(1, 41))
