"""Settles of messages that were never sent, have ended, or belong to another consumer: counted, and logged
now and then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from dispatcher.core.bounds import OFFENDERS_MAX


class IgnoredSettles:
    """Who did so since the last time that it was told."""

    def __init__(self, counters: Counter[str], log_event: Callable[..., Any]) -> None:
        self._counters = counters
        self._tell = log_event
        self._ignored: Counter[str] = Counter()

    def note(self, consumer: str, count: int) -> None:
        """This number of its settles was ignored; 0 if it only said which messages have begun."""
        if not count:
            return
        self._counters["settles_ignored"] += count
        if consumer in self._ignored or len(self._ignored) < OFFENDERS_MAX:
            self._ignored[consumer] += count

    def log_event(self) -> None:
        """Name them in the log."""
        for consumer, count in self._ignored.items():
            self._tell("settles_ignored", consumer=consumer, count=count)
        self._ignored.clear()
