"""Which losses of a connection are news."""

from __future__ import annotations

import logging
from typing import Final

#: What a broker that shuts down says; it is then away like one that said nothing.
_CONNECTION_FORCED: Final = 320
_AWAY: Final = 0


class Losses:
    """The losses that were reported since the connection last worked.

    Attempts go on every second, and libraries and systems word one outage in several ways: a kind of loss is
    its code, see `Receiver.lost`.
    """

    def __init__(self) -> None:
        self._told: set[int] = set()

    def level(self, code: int) -> int:
        """The level at which to log a loss with this code: WARNING the first time."""
        kind = _AWAY if code == _CONNECTION_FORCED else code
        level = logging.DEBUG if kind in self._told else logging.WARNING
        self._told.add(kind)
        return level

    @property
    def ongoing(self) -> bool:
        """Something was lost and is not there again."""
        return bool(self._told)

    def over(self) -> None:
        """It works: the next loss is news."""
        self._told.clear()
