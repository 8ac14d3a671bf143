"""A consumer of a simulation: it works on several messages at a time, but on one of each group."""

from __future__ import annotations

from collections import deque


class SimulatedConsumer:
    """Ready messages wait in turn. A message is ready once the one before it of its group is done."""

    def __init__(self, *, at_a_time: int, speed: float) -> None:
        self.speed = speed
        self._free = at_a_time
        self._ready: deque[int] = deque()
        self._behind: dict[bytes, deque[int]] = {}  # by group of which one is ready or in work

    def there(self, place: int, group: bytes | None) -> int | None:
        """A message has come; returns the place of the one to begin with now, if any."""
        if group is not None:
            if group in self._behind:
                self._behind[group].append(place)
                return None
            self._behind[group] = deque()
        self._ready.append(place)
        return self._begin()

    def done(self, group: bytes | None) -> list[int]:
        """The work on a message of this group has ended; returns those to begin with."""
        self._free += 1
        if group is not None:
            behind = self._behind[group]
            if behind:
                self._ready.append(behind.popleft())
            else:
                del self._behind[group]
        begun = self._begin()
        more = self._begin()
        return [place for place in (begun, more) if place is not None]

    def _begin(self) -> int | None:
        if not self._free or not self._ready:
            return None
        self._free -= 1
        return self._ready.popleft()
