"""What becomes of a message whose handler raised."""

from __future__ import annotations

import pytest

from dispatcher.client.retries import (
    BACKOFF_MAX_MS,
    GiveUp,
    RejectMessage,
    RetryChoice,
    RetryIn,
    RetryLater,
    RetryPolicy,
)


def test_the_pause_doubles_up_to_a_minute() -> None:
    policy = RetryPolicy(attempts=100, backoff_ms=1_000)
    pauses = [policy.after(ValueError(), calls) for calls in (1, 2, 3, 6, 7, 99)]
    expected_ms = (1_000, 2_000, 4_000, 32_000, BACKOFF_MAX_MS, BACKOFF_MAX_MS)
    assert pauses == [RetryIn(delay_ms) for delay_ms in expected_ms]


def test_the_last_attempt_gives_up_with_the_exceptions_text() -> None:
    policy = RetryPolicy(attempts=2)
    assert policy.after(ValueError("no stock"), 2) == GiveUp("ValueError: no stock")
    assert policy.after(ValueError(), 2) == GiveUp("ValueError")


def test_a_handler_may_choose_the_pause_but_not_the_number_of_attempts() -> None:
    policy = RetryPolicy(attempts=2)
    assert policy.after(RetryLater(7), 1) == RetryIn(7)
    assert policy.after(RetryLater(7), 2) == GiveUp("RetryLater: retry in 7 ms")


def test_a_handler_may_bridge_an_outage() -> None:
    """What is no attempt can't be the last one, and its reason is told."""
    policy = RetryPolicy(attempts=1)
    assert policy.after(RetryLater(7, "the database is down", counts=False), 0) == RetryIn(7)
    assert policy.after(RetryLater(7, "database down"), 1) == GiveUp("RetryLater: database down")


def test_a_rejected_message_is_given_up_at_once() -> None:
    assert RetryPolicy().after(RejectMessage("unknown customer"), 1) == GiveUp("unknown customer")
    assert RetryPolicy().after(RejectMessage(ValueError("no such id")), 1) == GiveUp("no such id")
    assert RetryPolicy().after(RejectMessage(404), 1) == GiveUp("404")


@pytest.mark.parametrize(
    ("arguments", "problem"), [({"attempts": 0}, "attempts must be"), ({"backoff_ms": -1}, "backoff_ms must")]
)
def test_what_can_not_work_is_named(arguments: dict[str, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        RetryPolicy(**arguments)
    with pytest.raises(ValueError, match="delay_ms must"):
        RetryLater(-1)
    with pytest.raises(ValueError, match=problem):
        RetryChoice(**{"attempts": None, "backoff_ms": None, **arguments})


def test_what_an_application_leaves_open_is_the_lanes() -> None:
    lane = RetryPolicy(attempts=7, backoff_ms=70)
    assert RetryChoice(None, None).over(lane) == lane
    assert RetryChoice(2, None).over(lane) == RetryPolicy(attempts=2, backoff_ms=70)
    assert RetryChoice(None, 0).over(lane) == RetryPolicy(attempts=7, backoff_ms=0)


@pytest.mark.parametrize(
    "told", [None, 3, {}, {"attempts": 0, "backoff": 5}, {"attempts": 3, "backoff": "1s"}]
)
def test_a_welcome_that_says_nothing_of_retries_changes_nothing(told: object) -> None:
    assert RetryPolicy.of_welcome(told) is None
    assert RetryPolicy.of_welcome({"attempts": 2, "backoff": 5}) == RetryPolicy(attempts=2, backoff_ms=5)
