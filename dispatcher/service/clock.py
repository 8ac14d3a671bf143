"""The clock of a dispatcher: wall time that never goes back."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Milliseconds since 1970 that never go back: the wall clock at start, then a monotonic one."""

    def __init__(
        self, wall_s: Callable[[], float] = time.time, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._monotonic_s = monotonic_s
        self._offset_s = wall_s() - monotonic_s()

    def now_ms(self) -> int:
        return int((self._monotonic_s() + self._offset_s) * 1000)
