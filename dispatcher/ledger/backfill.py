"""Backfill: the records that a former leader did not write, made by the next one from the journal in Redis.

The journal has every commit since the last checkpoint. So if the former leader's files end behind that
checkpoint, none of its decisions is missing, only times are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from dispatcher.core.operations.operation import PURGED_BY, TRANSFERRED_BY
from dispatcher.core.operators.stopped_groups import REASON_DROPPED
from dispatcher.core.records import (
    DeadLetterPending,
    Discharged,
    IncarnationEnded,
    JournalReset,
    OpenEntry,
    Record,
    SettledRange,
    Vanished,
)
from dispatcher.ledger.hand_overs import Names
from dispatcher.ledger.rows import PLACES, Row, detail, row
from dispatcher.ledger.schema import Event
from dispatcher.ledger.steps import Place
from dispatcher.ledger.store import FormerFile

_INCARNATION: Final = PLACES["incarnation"]


class _Hand(NamedTuple):
    entry: OpenEntry
    since: int | None  # the commit that handed it over; None: one before the journal's first


class _End(NamedTuple):
    event: str
    hand: _Hand
    commit: int
    reason: str | None = None
    calls: int | None = None


class Backfill:
    """What the journal of the leadership before says, commit by commit."""

    def __init__(self, names: Names, incarnations: dict[int, tuple[str, str]]) -> None:
        self._names = names
        self._incarnations = incarnations
        self.is_whole = False  # all of the journal was read
        self._forget(0)

    def _forget(self, commit: int) -> None:
        self.first = self.last = commit  # commits that the journal has
        self._hands: dict[int, dict[int, _Hand]] = {}  # by incarnation and seq
        self._at: dict[Place, tuple[int, int]] = {}
        self._ending: dict[Place, DeadLetterPending] = {}
        self._ends: list[_End] = []
        self._gone: list[tuple[int, Place, DeadLetterPending]] = []

    def read(self, commit: int, records: Iterable[Record]) -> None:
        """The next commit."""
        self.first, self.last = self.first or commit, commit
        is_checkpoint = False
        for record in records:
            if isinstance(record, JournalReset):
                self._forget(commit)
                is_checkpoint = True
            elif isinstance(record, OpenEntry):
                self._opened(record, None if is_checkpoint else commit)
            elif isinstance(record, SettledRange):
                hands = self._hands.get(record.incarnation, {})
                for seq in range(record.first, record.last + 1):
                    self._end(Event.SETTLED, hands.pop(seq, None), commit)
            else:
                self._read_rare(commit, record)

    def _read_rare(self, commit: int, record: Record) -> None:
        match record:
            case IncarnationEnded(number):
                for hand in self._hands.pop(number, {}).values():
                    self._end(Event.TAKEN_BACK, hand, commit)
            case DeadLetterPending(inbound, arrival, _, _, attempt, reason, calls):
                if attempt:
                    self._end(Event.FAILED, self._take((inbound, arrival)), commit, reason, calls)
                self._ending[inbound, arrival] = record
            case Discharged(inbound, arrival):
                if (ended := self._ending.pop((inbound, arrival), None)) is not None:
                    self._gone.append((commit, (inbound, arrival), ended))
            case Vanished(inbound, arrival):
                self._end(Event.VANISHED, self._take((inbound, arrival)), commit)

    def _opened(self, entry: OpenEntry, commit: int | None) -> None:
        place = entry.inbound, entry.arrival
        self._ending.pop(place, None)
        if not entry.incarnation:  # no consumer has it any more
            if commit is not None:
                self._end(Event.FAILED, self._take(place), commit)
            return
        hands = self._hands.setdefault(entry.incarnation, {})
        known = hands.get(entry.seq)  # the same copy, with other numbers
        hands[entry.seq] = _Hand(entry, known.since if known is not None else commit)
        self._at[place] = entry.incarnation, entry.seq

    def _take(self, place: Place) -> _Hand | None:
        number, seq = self._at.pop(place, (0, 0))
        return self._hands.get(number, {}).pop(seq, None)

    def _end(
        self, event: str, hand: _Hand | None, commit: int, reason: str | None = None, calls: int = 0
    ) -> None:
        if hand is not None:
            self._ends.append(_End(event, hand, commit, reason, calls or None))

    # -- records --

    def rows(self, time_us: int, former: FormerFile) -> list[Row]:
        """Of what the former leader's files don't tell, and behind these the one that says how much of it is
        here."""
        rows = [
            self._row(time_us, end.event, end.hand, end.commit, end.reason, end.calls)
            for end in self._ends if end.commit > former.commit
        ]  # fmt: skip
        rows += [
            self._row(time_us, Event.DISPATCHED, hand, None)
            for hands in self._hands.values() for hand in hands.values()
            if hand.since is not None and hand.since > former.commit
        ]  # fmt: skip
        # A hand-over without an incarnation can't be recognised later.
        nameless = sum(each[_INCARNATION] is None for each in rows)
        rows += [self._left(time_us, *gone) for gone in self._gone if gone[0] > former.commit]
        missing = max(0, self.first - former.commit - 1) + nameless
        facts = {
            "writer": former.writer, "ordinal": former.ordinal,
            "commits": [max(self.first, former.commit + 1), max(self.last, former.commit)],
            "missing": missing,
        }  # fmt: skip
        rows.append(row(time_us, Event.TOLD_AGAIN, messages=len(rows), detail=detail(facts)))
        return rows

    def _row(
        self, time_us: int, event: str, hand: _Hand, commit: int | None, reason: str | None = None,
        calls: int | None = None,
    ) -> Row:  # fmt: skip
        entry = hand.entry
        consumer, uuid = self._incarnations.get(entry.incarnation, (None, None))
        return row(
            time_us, event, **self._about((entry.inbound, entry.arrival)),
            group=self._names.groups[entry.group], group_seq=entry.group_seq, epoch=entry.epoch,
            consumer=consumer, incarnation=uuid, seq=entry.seq, attempt=entry.attempt, calls=calls,
            dispatch_id=entry.fingerprint, reason=reason, detail=detail({"commits": [hand.since, commit]}),
        )  # fmt: skip

    def _left(self, time_us: int, commit: int, place: Place, ended: DeadLetterPending) -> Row:
        event, reason = what_left(ended.reason)
        return row(
            time_us, event, **self._about(place), group=self._names.groups[ended.group],
            attempt=ended.attempt or None, calls=ended.calls or None, dispatch_id=ended.fingerprint or None,
            reason=reason or None, detail=detail({"commits": [None, commit]}),
        )  # fmt: skip

    def _about(self, place: Place) -> dict[str, Any]:
        return {**self._names.origin(*place)._asdict(), "queue": self._names.queues.get(place[0])}


def what_left(reason: str) -> tuple[str, str]:
    """How a message ended without a settle, by the reason in its last entry; and why."""
    if reason.startswith(TRANSFERRED_BY):
        return Event.MOVED, reason.removeprefix(TRANSFERRED_BY)
    if reason.startswith(PURGED_BY):
        return Event.PURGED, reason.removeprefix(PURGED_BY)
    return (Event.DROPPED if reason == REASON_DROPPED else Event.DEAD_LETTERED), reason
