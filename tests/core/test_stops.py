"""Which message a group has stopped at, of those that failed in it."""

from __future__ import annotations

from dispatcher.core.model import Original
from dispatcher.core.operators.stop import Stop
from dispatcher.core.operators.stopped_groups import is_of
from dispatcher.core.queue_ids import parking_id

STOP = Stop(1, b"f" * 16, (7, 5), "no stock", 1, 1, "one", 0)


def _message(inbound: int, arrival: tuple[int, int], fingerprint: bytes = b"f" * 16) -> Original:
    message = Original(inbound, 1, arrival, fingerprint, b"g", None, 10, 0)
    message.attempt = 1
    return message


def _parked(inbound: int, root: tuple[int, int], fingerprint: bytes = b"p" * 16) -> Original:
    """What comes back from a parking queue: another arrival, another fingerprint."""
    message = _message(inbound, (9, 1), fingerprint)
    message.queue, message.origin_arrival = parking_id(0), root
    return message


def test_it_is_the_same_where_it_was_and_where_it_is_parked() -> None:
    assert is_of(STOP, _message(1, (7, 5)))
    assert is_of(STOP, _message(1, (8, 1))), "it came back, and its entry had been forgotten"
    assert is_of(STOP, _parked(1, (7, 5)))
    stopped_while_parked = Stop(1, b"p" * 16, (9, 1), "no stock", 1, 1, "one", 0)
    assert is_of(stopped_while_parked, _parked(1, (7, 5)))


def test_another_one_that_failed_as_often_and_is_parked_is_not_it() -> None:
    """It was released, and waits for a consumer that has nothing else: what is dropped is not that."""
    assert not is_of(STOP, _parked(0, (7, 3)))
    assert not is_of(STOP, _parked(0, (7, 5))), "in another inbound queue"
    assert not is_of(STOP, _parked(1, (7, 4)))
    assert not is_of(STOP, _message(1, (7, 6), b"o" * 16))


def test_it_is_not_what_was_handed_over_once_more() -> None:
    again = _message(1, (7, 5))
    again.attempt = 2
    assert not is_of(STOP, again)
