"""How long something took that happens again and again, told since the last look."""

from __future__ import annotations

from dispatcher.http.views import Spread


class Durations:
    """Takes durations; keeps three numbers, however many there are."""

    def __init__(self) -> None:
        self._sum_s = self._longest_s = 0.0
        self._count = 0

    def add(self, duration_s: float) -> None:
        self._sum_s += duration_s
        self._count += 1
        if duration_s > self._longest_s:
            self._longest_s = duration_s

    def take(self) -> Spread | None:
        """What was added since the last call; None: nothing. The next call begins anew."""
        if not self._count:
            return None
        spread = Spread(self._sum_s / self._count * 1_000, self._longest_s * 1_000)
        self._sum_s = self._longest_s = 0.0
        self._count = 0
        return spread
