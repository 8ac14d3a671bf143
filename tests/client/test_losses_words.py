"""What the Python client says of a connection that is gone."""

from __future__ import annotations

import asyncio

import pytest
from pika.exceptions import (
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    StreamLostError,
)

from dispatcher.client import pika_link
from dispatcher.client.aio_link import described


def test_a_connection_that_was_ended_here_is_not_told_with_a_name_of_the_library() -> None:
    code, reason = described(asyncio.CancelledError())
    assert code == 0
    assert "CancelledError" not in reason
    assert "ended here" in reason


@pytest.mark.parametrize(
    ("guess", "reason", "code"),
    [
        (ProbableAuthenticationError, ConnectionClosedByBroker(403, "ACCESS_REFUSED"), 403),
        (ProbableAccessDeniedError, ConnectionClosedByBroker(530, "NOT_ALLOWED"), 530),
        (ProbableAccessDeniedError, ConnectionClosedByBroker(320, "CONNECTION_FORCED"), 320),
        (ProbableAuthenticationError, StreamLostError("Transport indicated EOF"), 0),
        (ProbableAccessDeniedError, StreamLostError("Transport indicated EOF"), 0),
    ],
)
def test_a_node_that_ends_while_pika_connects_refuses_nobody(
    guess: type[Exception], reason: Exception, code: int
) -> None:
    """pika guesses a refusal, and keeps what happened as words."""
    said, text = pika_link.described(guess(repr(reason)))
    assert said == code
    if code:
        assert text == reason.args[1]
