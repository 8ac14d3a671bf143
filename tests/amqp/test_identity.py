"""What tells that a message was in a lane before, and who may say so."""

from __future__ import annotations

import pytest

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.identity import SentBack
from tests.amqp.samples import properties, text

ORIGIN = text("x-dispatch-origin", "in 7.1")


@pytest.mark.parametrize(
    ("exchange", "user", "counts"),
    [
        (b"dispatch.orders.ops", None, True),  # an operator
        (b"dispatch.bills", None, True),  # another lane's dispatcher
        (b"shop", b"dispatcher", True),  # rerouted by us, and back
        (b"shop", b"producer", False),
        (b"", None, False),
        (b"dispatch", None, False),
        (b"dispatches", None, False),
    ],
)
def test_a_producers_word_does_not_count(exchange: bytes, user: bytes | None, counts: bool) -> None:
    sent_back = SentBack(Grouping(("x-group-id",), None, prefix="dispatch"), "dispatcher")
    raw = properties(ORIGIN, user_id=user)
    assert sent_back.has(Delivery(1, b"", 1, False, exchange, b"in", raw, b"")) is counts


def test_without_the_header_nothing_was_sent_back() -> None:
    sent_back = SentBack(Grouping(("x-group-id",), None, prefix="dispatch"), None)
    for raw in (
        properties(),
        properties(text("other", "x-dispatch-originS")),
        b"\x20\x00\x00\x00\x00\x09\x01",
    ):
        assert not sent_back.has(Delivery(1, b"", 1, False, b"dispatch.orders.ops", b"in", raw, b""))
