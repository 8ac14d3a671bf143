"""How the core names the queues that an original may be in.

Inbound queues have their places in the lane's configuration, parking queues theirs in the list of their
names. Both are kept as one number, so that records and messages need only one: this module alone knows where
the parking queues begin.

A number becomes a QueueId only here, from a place. A decoder gives back the numbers that were encoded, and
mypy does not check these: they are untyped.
"""

from __future__ import annotations

from typing import Final, NewType

#: The number of a queue: of an inbound queue, of a parking queue, or UNKNOWN_INBOUND.
QueueId = NewType("QueueId", int)

#: Only its consumer told us of an original: in which inbound queue it is, is not known yet.
UNKNOWN_INBOUND: Final = QueueId(255)
#: The lane's first inbound queue. The number of every inbound queue is below that of every parking queue.
FIRST_INBOUND: Final = QueueId(0)
_FIRST_PARKING: Final = 256


def is_parking(queue: QueueId) -> bool:
    """Whether that is the number of a parking queue."""
    return queue >= _FIRST_PARKING


def is_known_inbound(queue: QueueId) -> bool:
    """Whether that is the number of an inbound queue."""
    return queue < UNKNOWN_INBOUND


def inbound_id(place: int) -> QueueId:
    """The number of the inbound queue that has this place in the lane's configuration."""
    return QueueId(place)


def parking_id(place: int) -> QueueId:
    """The number of the parking queue that has this place among their names."""
    return QueueId(_FIRST_PARKING + place)


def parking_place(queue: QueueId) -> int:
    """The opposite of `parking_id`."""
    return queue - _FIRST_PARKING
