"""Names for inbound queues that outlive a change of the configuration.

The journal names a queue by its number in a table that only grows, stored beside it; the core names it
by its position in today's configuration. Nothing is lost when queues are added, removed or reordered.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dispatcher.core.parking.orders import (
    GroupParked,
    ParkingQueueForgotten,
    ParkingQueueNamed,
    QueueUnparked,
    Relocated,
    Relocating,
    TermNeeded,
)
from dispatcher.core.queue_ids import UNKNOWN_INBOUND, QueueId, inbound_id, is_parking, parking_id
from dispatcher.core.records import (
    DeadLetterPending,
    Discharged,
    JournalReset,
    OpenEntry,
    ProvenAcks,
    Record,
    SettledEntries,
    SettledRange,
    Vanished,
)
from dispatcher.errors import ConfigurationError

#: What the journal has for UNKNOWN_INBOUND; the last of its 16 bits' numbers, so tables end before it.
UNKNOWN_STORED: Final = 0xFFFF
_PLACED = (
    OpenEntry,
    DeadLetterPending,
    Discharged,
    Vanished,
    SettledEntries,
    ProvenAcks,
    Relocating,
    Relocated,
)
#: Records of parking queues alone.
_PARKED = (ParkingQueueNamed, ParkingQueueForgotten, GroupParked, QueueUnparked, TermNeeded)
_Position = tuple[int, tuple[int, int]]  # stored inbound number, arrival


class InboundTable:
    """The stored table and how it maps to the configured queues, which are all in it."""

    def __init__(
        self, stored_names: Sequence[str], configured: Sequence[str], parking: Sequence[str] = ()
    ) -> None:
        number_of = {name: number for number, name in enumerate(stored_names)}
        self.stored_names = list(stored_names)
        #: Stored number by configured position, for `codec.encode`.
        self.to_stored = [UNKNOWN_STORED] * parking_id(len(parking))
        positions = [
            *((inbound_id(place), name) for place, name in enumerate(configured)),
            *((parking_id(place), name) for place, name in enumerate(parking)),
        ]
        for position, name in positions:
            self.to_stored[position] = number_of[name]
        self._to_configured = {number_of[name]: position for position, name in positions}
        self._to_configured[UNKNOWN_STORED] = UNKNOWN_INBOUND

    def translate(self, commits: Iterable[list[Record]], origin: str) -> Iterator[list[Record]]:
        """Each commit's records as decoded, with the configured positions in place of the stored numbers.

        What belongs to a queue that is no longer configured is left out when it is settled. Raises
        ConfigurationError, beginning with `origin`, that names such queues with anything open: at the end.
        """
        unconfigured = _Unconfigured()
        for records in commits:
            translated: list[Record] = []
            for record in records:
                if isinstance(record, _PLACED):
                    self._check_known(record.inbound, origin)
                    position = self._to_configured.get(record.inbound)
                    if position is None:
                        unconfigured.follow(record)
                    elif isinstance(record, Relocating):
                        target = self._parking_position(record.target, origin)
                        translated.append(record._replace(inbound=position, target=target))
                    else:
                        same = position == record.inbound
                        translated.append(record if same else record._replace(inbound=position))
                elif isinstance(record, _PARKED):
                    queue = self._parking_position(record.queue, origin)
                    translated.append(record._replace(queue=queue))
                elif isinstance(record, SettledRange):
                    translated.extend(unconfigured.settle(record))
                else:
                    if isinstance(record, JournalReset):
                        unconfigured = _Unconfigured()
                    translated.append(record)
            yield translated
        if numbers := unconfigured.queues_with_open_entries():
            names = ", ".join(repr(self.stored_names[number]) for number in sorted(numbers))
            raise ConfigurationError(
                f"{origin}: has unfinished messages of {names}, which the lane no longer lists; "
                "put it back under inbound until the lane has finished them"
            )

    def _parking_position(self, number: int, origin: str) -> QueueId:
        self._check_known(number, origin)
        position = self._to_configured.get(number)
        if position is None or not is_parking(position):
            raise ConfigurationError(
                f"{origin}: names {self.stored_names[number]!r} as a parking queue, which it is not; "
                "something else wrote it, delete the lane's keys"
            )
        return position

    def _check_known(self, number: int, origin: str) -> None:
        if number >= len(self.stored_names) and number != UNKNOWN_STORED:
            raise ConfigurationError(
                f"{origin}: names inbound queue number {number} and the lane's table ends before it; "
                "something else wrote it, delete the lane's keys"
            )


class _Unconfigured:
    """Entries of queues that the configuration doesn't have: which are open, and which seqs are theirs."""

    def __init__(self) -> None:
        self._open: dict[_Position, tuple[int, int]] = {}  # → incarnation, seq; 0, 0 once it has ended
        self._at: dict[int, dict[int, _Position]] = {}  # incarnation → seq → position

    def follow(
        self,
        record: OpenEntry
        | DeadLetterPending
        | Discharged
        | Vanished
        | SettledEntries
        | ProvenAcks
        | Relocating
        | Relocated,
    ) -> None:
        if isinstance(record, (SettledEntries, ProvenAcks)):
            return
        position = (record.inbound, record.arrival)
        incarnation, seq = self._open.pop(position, (0, 0))
        self._at.get(incarnation, {}).pop(seq, None)
        if isinstance(record, OpenEntry):
            self._open[position] = (record.incarnation, record.seq)
            self._at.setdefault(record.incarnation, {})[record.seq] = position
        elif isinstance(record, DeadLetterPending | Relocating):
            self._open[position] = (0, 0)

    def settle(self, settled: SettledRange) -> list[SettledRange]:
        """Close ours in the range; what remains of it, since the core knows none of ours."""
        ours = self._at.get(settled.incarnation)
        if not ours:
            return [settled]
        seqs = sorted(ours)
        seqs = seqs[bisect_left(seqs, settled.first) : bisect_right(seqs, settled.last)]
        remaining, first = [], settled.first
        for seq in seqs:
            self._open.pop(ours.pop(seq), None)
            if first < seq:
                remaining.append(SettledRange(settled.incarnation, first, seq - 1))
            first = seq + 1
        if first <= settled.last:
            remaining.append(SettledRange(settled.incarnation, first, settled.last))
        return remaining

    def queues_with_open_entries(self) -> set[int]:
        return {inbound for inbound, _ in self._open}
