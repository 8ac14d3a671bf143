"""What the Python client says of a connection that is gone."""

from __future__ import annotations

import asyncio

from dispatcher.client.aio_link import described


def test_a_connection_that_was_ended_here_is_not_told_with_a_name_of_the_library() -> None:
    code, reason = described(asyncio.CancelledError())
    assert code == 0
    assert "CancelledError" not in reason
    assert "ended here" in reason
