"""How the core names the queues that an original may be in.

Inbound queues have their places in the lane's configuration, parking queues theirs in the list of their
names. Both are kept as one number, so that records and messages need only one: this module alone knows where
the parking queues begin.
"""

from __future__ import annotations

from typing import Final, NewType

#: The number of a queue: of an inbound queue, of a parking queue, or UNKNOWN_INBOUND.
QueueId = NewType("QueueId", int)

#: Only its consumer told us of an original: in which inbound queue it is, is not known yet.
UNKNOWN_INBOUND: Final = QueueId(255)
_FIRST_PARKING: Final = 256


def is_parking(queue: int) -> bool:
    """Whether that is the number of a parking queue."""
    return queue >= _FIRST_PARKING


def is_known_inbound(queue: int) -> bool:
    """Whether that is the number of an inbound queue."""
    return queue < UNKNOWN_INBOUND


def parking_id(place: int) -> QueueId:
    """The number of the parking queue that has this place among their names."""
    return QueueId(_FIRST_PARKING + place)


def parking_place(queue: int) -> int:
    """The opposite of `parking_id`."""
    return queue - _FIRST_PARKING
