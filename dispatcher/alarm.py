"""One timer for an object that has many deadlines and knows the earliest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Something that happens later, unless it is cancelled."""

    def cancel(self) -> object: ...


class Alarm:
    """Calls `ring` at the instant that was set last, or before: a deadline that moves back, as most do when
    something happens, leaves the timer alone, so `ring` must look whether anything is due, and set it again.

    `call_later` is the loop's, with a delay in ms.
    """

    __slots__ = ("_at_ms", "_call_later", "_ring", "_timer")

    def __init__(
        self, call_later: Callable[[int, Callable[[], None]], Timer], ring: Callable[[], None]
    ) -> None:
        self._call_later = call_later
        self._ring = ring
        self._timer: Timer | None = None
        self._at_ms = 0

    def set(self, at_ms: int | None, now_ms: int) -> None:
        """Ring at `at_ms`, at once if that is past; None: not at all."""
        if at_ms is None:
            self.cancel()
        elif self._timer is None or at_ms < self._at_ms:
            self.cancel()
            self._at_ms = at_ms
            self._timer = self._call_later(max(0, at_ms - now_ms), self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._ring()
