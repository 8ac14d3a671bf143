"""What recovery asks and tells about originals that are not in an inbound queue, or that are leaving it.

Parking moves originals to other queues (`parking/parked_entries.py`). Recovery knows no more of it than this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from dispatcher.core.model import Group, Original
from dispatcher.core.records import JournalEntry
from dispatcher.core.recovery.journal_replay import JournalReplay


class Expecting(Protocol):
    """A queue that is to deliver originals of open entries again."""

    def expect(self, message: Original) -> None: ...

    def forget(self, message: Original) -> None: ...

    def settled_early(self, message: Original) -> None: ...


class Elsewhere(Protocol):
    """Originals in other queues, and on their way there."""

    def listen(self, journal: JournalReplay) -> None:
        """This journal is about to be read: what it says of other queues is to be read with it."""

    def load(self, entries: Iterable[JournalEntry]) -> None:
        """The journal was read, and has these open entries. Called once, before all that follows."""

    def has_entries_of(self, group_id: bytes | None) -> bool:
        """Whether the journal had open entries of the group, or bucket, of this id elsewhere."""

    def may_have(self, group: Group) -> bool:
        """Whether messages of this group may come from elsewhere."""

    def may_bring(self, group: Group) -> bool:
        """Whether messages of this group are there and not here, or on their way there."""

    def expecting(self, message: Original) -> Expecting | None:
        """The queue that is to deliver this original; None: it is none of these."""

    def resume(self, message: Original, entry: JournalEntry, *, is_known: bool) -> None:
        """By its entry this message was on its way there. `is_known`: and no other one was."""

    def is_back(self, message: Original) -> None:
        """An original has met its entry; perhaps such a queue has delivered it again."""

    def go_on(self, message: Original) -> None:
        """The original of a message that was on its way there has come back: it goes there once more."""

    def forget(self, message: Original, *, is_known: bool) -> None:
        """No original will come. If it was on its way there, that has ended."""

    def is_settled(self, message: Original) -> None:
        """It is settled, and its original will not come: a copy of it that comes late is none."""

    def is_through(self) -> bool:
        """No such queue delivers anything again of what it had delivered before."""
