"""How to watch a run from outside of the system under test, and how to say that a guarantee did not hold."""

from __future__ import annotations

from typing import Any

from dispatcher.client.copies import Copy
from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import Event
from dispatcher.core.lane import Lane
from dispatcher.sim.facts import DispatchFact
from dispatcher.sim.life import Life
from dispatcher.sim.queues import Queue


class Violation(Exception):
    """A guarantee did not hold."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker
        self.text = text


class Watcher:
    """Hooks that do nothing: the history calls them as things happen."""

    def stored(self, life: Life) -> None:
        """The broker has put the original into its inbound queue."""

    def handed(self, life: Life, incarnation: str, copy: Copy) -> None:
        """The SDK took a copy for a new message."""

    def begun(self, life: Life, incarnation: str, copy: Copy) -> None:
        """A handler begins."""

    def acked(self, life: Life) -> None:
        """The broker has removed the original."""

    def nacked(self, queue: Queue, body: bytes) -> None:
        """A queue has refused a publish."""

    def acked_parked(self, life: Life) -> None:
        """The broker has removed a copy from a parking queue."""

    def buried(self, life: Life) -> None:
        """The dead queue has the message."""

    def decided(self, process: str, events: list[Event], effects: Effects) -> None:
        """A leader has taken a step, what it decided is not committed yet; `process`: which one."""

    def dispatched(self, life: Life, to: DispatchFact) -> None:
        """The commit says that the message is handed over; not called when a copy is sent again."""

    def read(self, snapshot: Snapshot) -> None:
        """A new leader has read Redis: `snapshot` is what it found."""

    def flagged(self, key: bytes, row: dict[str, Any] | None) -> None:
        """A flag that an operator has set or removed (`row` None) is committed."""

    def asked(self, uuid: str) -> None:
        """An operator's command is in its queue."""

    def operated(self, uuid: str, result: dict[str, Any]) -> None:
        """The result of a command is committed."""

    def left(self, life: Life, uuid: str) -> None:
        """The commit says that an operation has sent the message elsewhere."""

    def reopened(self, life: Life) -> None:
        """A settle turned out not to count."""

    def begins_again(self, life: Life) -> None:
        """RabbitMQ has forgotten that the message had ended; `life`: of what is handed over once more."""

    def led(self, lane_epoch: int) -> None:
        """A new leader has raised the lane epoch."""

    def committed(self, lane_epoch: int) -> None:
        """Redis has taken a commit of this leader."""

    def taken(self, incarnation: str, *, marked: bool) -> None:
        """The end of an incarnation is committed; `marked`: behind a marker for its latest connection."""

    def leading(self, lane: Lane) -> None:
        """A new leader has a core."""

    def application_begins(self, life: Life, reader: str) -> None:
        """An application that only reads a queue begins with a message."""

    def struck(self, kind: str) -> None:
        """A fault of this kind has hit something."""

    def not_done(self) -> None:
        """The time is up, and something is not done."""

    def at_end(self) -> None:
        """All is quiet: no fault lasts, everything should be done."""
