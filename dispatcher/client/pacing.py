"""How long to wait before connecting again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

FIRST_DELAY_MS: Final = 50
#: Contract section 6, rule 6: reconnect at least every second.
DELAY_MAX_MS: Final = 1_000
#: Up to this part of a pause is left out: clients that lost one broker don't come back all at once.
JITTER: Final = 0.5
#: From 0 to 1: how much of `JITTER` is left out of the next pause.
Chance = Callable[[], float]


class Backoff:
    """Nothing after a connection that worked, then longer with every attempt that did not."""

    def __init__(self, chance: Chance = random.random) -> None:
        self._chance = chance
        self._delay_ms = 0

    def next_delay_ms(self) -> int:
        delay_ms = self._delay_ms
        self._delay_ms = min(max(FIRST_DELAY_MS, 2 * delay_ms), DELAY_MAX_MS)
        return int(delay_ms * (1 - JITTER * self._chance()))

    def reset(self) -> None:
        """It works."""
        self._delay_ms = 0
