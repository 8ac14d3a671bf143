"""Where an original was first: the name that follows it into parking queues and the dead queue."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

Arrival = tuple[int, int]  # lane epoch, delivery tag
_FINGERPRINT_BYTES: Final = 16


def origin_text(queue: str, arrival: Arrival) -> str:
    """The value of `x-dispatch-origin`: inbound queue and arrival number, which no two originals share."""
    return f"{queue} {arrival[0]}.{arrival[1]}"


def read_origin(text: str) -> tuple[str, Arrival]:
    """The opposite of `origin_text`. Raises ValueError."""
    queue, _, number = text.rpartition(" ")
    lane_epoch, _, tag = number.partition(".")
    if not (queue and lane_epoch.isdecimal() and tag.isdecimal()):
        raise ValueError(f"{text!r} is no origin")
    return queue, (int(lane_epoch), int(tag))


def origin_fingerprint(text: str) -> bytes:
    """What tells a parked message from every other one, equal bytes or not."""
    return blake2b(text.encode(), digest_size=_FINGERPRINT_BYTES).digest()
