"""Where a message came from, as records say it: its place in an inbound queue, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.core.model import Original
from dispatcher.core.queue_ids import FIRST_INBOUND, QueueId, parking_id
from dispatcher.core.records import Dispatched
from dispatcher.ledger.hand_overs import HandOver, Names, known_before
from dispatcher.ledger.rows import PLACES
from dispatcher.ledger.schema import Event

PARKED = parking_id(0)
#: (where it is, its arrival there, in the first queue that it was in) → what a record says of it.
ORIGINS = {
    "inbound": ((FIRST_INBOUND, FIRST_INBOUND, (5, 26), None), ("in", 5, 26)),
    "parked": ((FIRST_INBOUND, PARKED, (7, 2), (5, 26)), ("in", 5, 26)),
    "parked, and known from the journal alone": ((PARKED, PARKED, (7, 2), None), (None, None, None)),
}


@pytest.fixture
def names() -> Names:
    return Names(["in"], ("park.1",))


def _hand(
    inbound: QueueId, queue: QueueId, arrival: tuple[int, int], origin: tuple[int, int] | None
) -> HandOver:
    message = Original(inbound, 0, arrival, b"f", b"g", None, 0, 0)
    message.queue = queue
    if origin is not None:
        message.origin_arrival = origin
    return known_before(Dispatched(message, 1, "", 8, 1, 9, 1))


def _hands() -> Iterator[tuple[HandOver, tuple[Any, ...]]]:
    return ((_hand(*facts), expected) for facts, expected in ORIGINS.values())


def test_a_record_of_one_hand_over(names: Names) -> None:
    for hand, expected in _hands():
        row = names.hand_over(1, Event.TAKEN_BACK, hand)
        assert tuple(row[PLACES[name]] for name in ("inbound", "arrival_epoch", "arrival")) == expected


def test_what_a_stranger_put_into_a_parking_queue_came_from_nowhere(names: Names) -> None:
    message = Original(FIRST_INBOUND, 2, (7, 2), b"f", None, None, 0, 0)
    message.queue = PARKED
    assert names.origin_of(message) == (None, None, None)


def test_records_of_settles_that_are_written_together(names: Names) -> None:
    hands, expected = zip(*_hands(), strict=True)
    for hand in hands:
        hand[-1] = 1
    columns, _ = names.settled(list(hands))
    told = [columns[PLACES[name]].to_pylist() for name in ("inbound", "arrival_epoch", "arrival")]
    assert list(zip(*told, strict=True)) == list(expected)
