"""How long to wait before connecting again."""

from __future__ import annotations

from typing import Final

FIRST_DELAY_MS: Final = 50
#: Contract section 6, rule 6: reconnect at least every second.
DELAY_MAX_MS: Final = 1_000


class Backoff:
    """Nothing after a connection that worked, then longer with every attempt that did not."""

    def __init__(self) -> None:
        self._delay_ms = 0

    def next_delay_ms(self) -> int:
        delay_ms = self._delay_ms
        self._delay_ms = min(max(FIRST_DELAY_MS, 2 * delay_ms), DELAY_MAX_MS)
        return delay_ms

    def reset(self) -> None:
        """It works."""
        self._delay_ms = 0
