"""How long the end of a run is awaited: as long as something is handled, and not for ever.

Producers may have published more than consumers could do while they were hurt; what is left then takes its
time, which says nothing about the dispatcher. That nothing moves any more does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

#: Longer than a recovery with consumers that died, the grace of these, and a frozen leader take together.
STILL_S: Final = 90.0
WHOLE_S: Final = 20 * 60.0
_POLL_S: Final = 0.1
#: Between two counts of what was handled: all records are read for that.
_COUNT_S: Final = 5.0


class Patience:
    """With what is left after the last fault, at `now_s`."""

    def __init__(self, now_s: float, still_s: float = STILL_S) -> None:
        self._still_s = still_s
        self._begun_s = self._moved_s = now_s
        self._handled = -1

    def ended_by(self, handled: int, now_s: float) -> str | None:
        """Why it is over when so many were handled by now; None: it is not."""
        if handled != self._handled:
            self._handled, self._moved_s = handled, now_s
        if now_s - self._moved_s >= self._still_s:
            return f"not live: not drained, and nothing was handled for {self._still_s:.0f} s"
        if now_s - self._begun_s >= WHOLE_S:
            return f"not live: not drained {WHOLE_S / 60:.0f} min after the last fault"
        return None


async def drain(
    is_drained: Callable[[], Awaitable[bool]], handled: Callable[[], int], still_s: float = STILL_S
) -> str | None:
    """Wait until everything is handled; what is wrong if it never is."""
    patience = Patience(time.monotonic(), still_s)
    counted_s = 0.0
    while not await is_drained():
        now_s = time.monotonic()
        if now_s - counted_s >= _COUNT_S:
            counted_s = now_s
            problem = patience.ended_by(await asyncio.to_thread(handled), now_s)
            if problem is not None:
                return problem
        await asyncio.sleep(_POLL_S)  # sleeps: between two looks
    return None
