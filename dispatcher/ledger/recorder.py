"""The service tells the ledger of events: a note for each batch, and never waits. It passes the core's own
objects. A recorder makes plain notes of them; the process that writes the ledger works out what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.options import LaneOptions


class Recorder:
    """Where one leadership is told of; this one forgets everything: the ledger is off."""

    reads_kinds = False  # whether messages must know their `type` when they are told of

    def now_us(self) -> int:
        return 0

    def began(self, lane: Lane, snapshot: Snapshot) -> None:
        """The lane is led from now on, with what this said."""

    def changed(self, options: LaneOptions) -> None:
        """It goes on with other options."""

    def arrived(self, messages: list[Original]) -> None:
        """Originals were read from an inbound queue."""

    def read_back(self, messages: list[Original]) -> None:
        """Originals were read from a parking queue."""

    def decided(self, effects: Effects, decided_at_us: int, commit: int = 0) -> None:
        """A step that was decided then is committed, by the lane's commit of that number; 0: by none."""

    def confirmed(self, orders: list[Any]) -> None:
        """The broker has answered these publishes, copies among them."""

    def ended(self, reason: str | None) -> None:
        """It is led no more; None: on purpose."""


class OpensRecorders(Protocol):
    """Where lanes get their recorders from."""

    def recorder(self, lane: str) -> Recorder:
        """For the next leadership of that lane."""

    def counters(self, lane: str) -> dict[str, float]:
        """Totals of that lane's records, since the process began."""


class NoLedger:
    """Nothing is recorded."""

    def recorder(self, lane: str) -> Recorder:
        return Recorder()

    def counters(self, lane: str) -> dict[str, float]:
        return {}


NO_LEDGER = NoLedger()


class _RecordersOfLane(Recorder):
    """Tells each of them; the first one's clock counts."""

    def __init__(self, recorders: Sequence[Recorder]) -> None:
        self._recorders = recorders
        self.reads_kinds = any(recorder.reads_kinds for recorder in recorders)

    def now_us(self) -> int:
        return self._recorders[0].now_us()

    def began(self, lane: Lane, snapshot: Snapshot) -> None:
        for recorder in self._recorders:
            recorder.began(lane, snapshot)

    def changed(self, options: LaneOptions) -> None:
        for recorder in self._recorders:
            recorder.changed(options)

    def arrived(self, messages: list[Original]) -> None:
        for recorder in self._recorders:
            recorder.arrived(messages)

    def read_back(self, messages: list[Original]) -> None:
        for recorder in self._recorders:
            recorder.read_back(messages)

    def decided(self, effects: Effects, decided_at_us: int, commit: int = 0) -> None:
        for recorder in self._recorders:
            recorder.decided(effects, decided_at_us, commit)

    def confirmed(self, orders: list[Any]) -> None:
        for recorder in self._recorders:
            recorder.confirmed(orders)

    def ended(self, reason: str | None) -> None:
        for recorder in self._recorders:
            recorder.ended(reason)


class Both:
    """Lanes are told of in several places: the first one has the clock."""

    def __init__(self, *places: OpensRecorders) -> None:
        self._places = places

    def recorder(self, lane: str) -> Recorder:
        return _RecordersOfLane([place.recorder(lane) for place in self._places])

    def counters(self, lane: str) -> dict[str, float]:
        return {name: n for place in self._places for name, n in place.counters(lane).items()}
