"""Originals that have ended: RabbitMQ may deliver each of them again until it has processed the ack."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from dispatcher.core.bounds import PROVEN_PER_INBOUND_MAX

#: Arrival and fingerprint.
SettledOriginal = tuple[tuple[int, int], bytes]


class SettledOriginals:
    """Those of one inbound queue, in the order in which they ended."""

    __slots__ = ("proven", "unproven")

    def __init__(self) -> None:
        # Their acks are on the way …
        self.unproven: deque[SettledOriginal] = deque()
        # … or known to be processed. A killed broker forgets up to 32,768 of those of a busy classic queue.
        self.proven: deque[SettledOriginal] = deque(maxlen=PROVEN_PER_INBOUND_MAX)

    def prove(self, count: int) -> int:
        """The broker has processed `count` more acks; returns how many of them were still unproven."""
        unproven = self.unproven
        if count < len(unproven):
            self.proven.extend(unproven.popleft() for _ in range(count))
            return count
        proven = len(unproven)
        self.proven.extend(unproven)
        unproven.clear()
        return proven

    def add_proven(self, entries: Iterable[SettledOriginal]) -> None:
        """The acks of these are known to be processed."""
        self.proven.extend(entries)
