"""What is here of an inbound queue: how many originals, how large they are, and which may come once more.

`prefetch_window` decides by this how many may be here at a time.
"""

from __future__ import annotations

from typing import Any, Final

from dispatcher.core.model import Original
from dispatcher.core.settled_originals import SettledOriginals

#: The mean size of originals is that of about this many.
SIZES_REMEMBERED: Final = 64


class FetchedQueue:
    """An inbound queue as it is fetched. Sizes are in bytes."""

    __slots__ = (
        "latest", "mean_bytes", "paused", "recovery", "replaceable", "settled", "unacked", "window",
    )  # fmt: skip

    def __init__(self, window: int) -> None:
        self.window = window  # originals that may be here at a time, beside what a former window let in
        self.unacked = 0  # originals here: waiting, in flight or ending
        self.latest = (0, 0)  # arrival of the latest original
        self.mean_bytes = 0.0  # that the latest originals took; 0: none came
        self.paused = False  # not fetched from because of the byte budget
        self.replaceable = True  # False: its consumer must never be replaced, and its window stays
        self.recovery: Any = None  # what it may still deliver again: recovery/expected.py has the type
        self.settled = SettledOriginals()

    def take_in(self, message: Original) -> None:
        """An original is here, and counts until it is settled."""
        self.latest = message.arrival
        self.unacked += 1
        mean, footprint = self.mean_bytes, message.footprint
        self.mean_bytes = mean + (footprint - mean) / SIZES_REMEMBERED if mean else footprint

    def is_full(self) -> bool:
        """Nothing more of it comes before something is settled."""
        return self.paused or self.unacked >= self.window
