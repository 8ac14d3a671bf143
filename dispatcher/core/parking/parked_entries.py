"""Recovery of parked messages: entries whose originals are in parking queues, and relocations that a former
leader has begun.

To recovery this is what is elsewhere (`recovery/elsewhere.py` says what each method is for).
"""

from __future__ import annotations

from collections.abc import Iterable

from dispatcher.core.model import Group, Original
from dispatcher.core.parking.journal_replay import ParkingReplay
from dispatcher.core.parking.orders import Relocating
from dispatcher.core.parking.queue import ParkingQueue
from dispatcher.core.parking.relocation import forget_relocation, resume_relocation
from dispatcher.core.queue_ids import is_parking
from dispatcher.core.records import JournalEntry
from dispatcher.core.recovery.journal_replay import JournalReplay
from dispatcher.core.state import LaneState


class ParkedEntries:
    """Of one lane, whether its options ask for parking or not: a former leader's may have."""

    def __init__(self, state: LaneState) -> None:
        self._state = state
        self.replay: ParkingReplay | None = None  # from its reading until all of it is loaded
        self._groups: set[bytes | None] = set()  # by key: the journal knows parked messages of theirs

    def listen(self, journal: JournalReplay) -> None:
        self.replay = journal.others = ParkingReplay(journal)

    def load(self, entries: Iterable[JournalEntry]) -> None:
        self.replay = None
        self._groups = {self._key(entry.group) for entry in entries if is_parking(entry.inbound)}

    def has_entries_of(self, group_id: bytes | None) -> bool:
        return self._key(group_id) in self._groups

    def _key(self, group_id: bytes | None) -> bytes | None:
        return None if group_id is None else self._state.key_of(group_id)

    def may_have(self, group: Group) -> bool:
        return bool(self._state.parking.route(group))

    def may_bring(self, group: Group) -> bool:
        return self._state.parking.may_bring(group)

    def expecting(self, message: Original) -> ParkingQueue | None:
        return self._state.parking[message.queue] if message.is_parked else None

    def resume(self, message: Original, entry: JournalEntry, *, is_known: bool) -> None:
        assert isinstance(entry, Relocating)
        resume_relocation(self._state, message, entry, is_known=is_known)

    def is_back(self, message: Original) -> None:
        if message.is_parked:
            self._state.parking[message.queue].here[message.fingerprint] = message

    def go_on(self, message: Original) -> None:
        assert message.relocation is not None
        message.relocation.target.waiting.append(message)

    def forget(self, message: Original, *, is_known: bool) -> None:
        if message.relocation is not None:
            forget_relocation(self._state, message, is_known=is_known)

    def is_settled(self, message: Original) -> None:
        self._state.parking[message.queue].remember(message.fingerprint, message.arrival)

    def is_through(self) -> bool:
        return not any(queue.redelivering for queue in self._state.parking.values())
