"""Deletes files that are too old or too many: the oldest of all lanes first."""

from __future__ import annotations

from typing import Final

import structlog

from dispatcher.ledger.store import FAILURES, Store, first_line
from dispatcher.settings import LedgerSettings

log = structlog.get_logger()

#: All files are listed at this interval, and when enough was written to matter.
LOOK_S: Final = 300
#: The part of the limit that may be written between two listings.
ADDED_PART: Final = 0.1
#: A dotted file that was last written to this long ago was left by a crash.
LEFTOVER_S: Final = 3_600


class Retention:
    """Keeps a ledger within `max_age` and `max_bytes`."""

    def __init__(self, store: Store, settings: LedgerSettings) -> None:
        self._store, self._settings = store, settings
        self._due_s = 0.0
        self._added = 0

    def added(self, size: int) -> None:
        """A file of that many bytes was written."""
        self._added += size

    def look(self, now_s: float) -> None:
        """Delete what must go, if it is time to look."""
        limit = self._settings.max_bytes
        if now_s < self._due_s and (limit is None or self._added < ADDED_PART * limit):
            return
        self._due_s, self._added = now_s + LOOK_S, 0
        try:
            self._delete(now_s)
        except FAILURES as problem:
            log.warning("ledger_not_cleaned", problem=first_line(problem))

    def _delete(self, now_s: float) -> None:
        settings, files = self._settings, self._store.files()
        oldest_s = 0.0 if settings.max_age_ms is None else now_s - settings.max_age_ms / 1_000
        whole = [file for file in files if file.is_whole]
        total = sum(file.size for file in whole)
        for file in whole:
            if file.written_at_s >= oldest_s and (settings.max_bytes is None or total <= settings.max_bytes):
                break
            self._store.delete(file.path)
            total -= file.size
        for file in files:
            if not file.is_whole and file.written_at_s < now_s - LEFTOVER_S:
                self._store.delete(file.path)
