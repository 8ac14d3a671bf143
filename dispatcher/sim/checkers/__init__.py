"""Checkers: each watches one guarantee from outside of the system under test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dispatcher.client.copies import Copy

if TYPE_CHECKING:
    from dispatcher.core.effects import Effects, Snapshot
    from dispatcher.core.events import Event
    from dispatcher.core.lane import Lane
    from dispatcher.sim.life import Life
    from dispatcher.sim.queues import Queue
    from dispatcher.sim.world import World


class Violation(Exception):
    """A guarantee did not hold."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker
        self.text = text


class HandOver(NamedTuple):
    """A decision that a message goes to a consumer."""

    uid: int
    incarnation: str
    consumer: str
    attempt: int
    group: bytes | None  # the key of its group in the lane's map
    seq: int


class Checker:
    """Hooks that do nothing; `violate` ends the run."""

    name = ""

    def __init__(self, world: World) -> None:
        self.world = world

    def violate(self, text: str) -> None:
        self.world.history.violate(self.name, text)

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
        """The dead queue has it."""

    def decided(self, process: str, events: list[Event], effects: Effects) -> None:
        """A leader has taken a step, what it decided is not committed yet; `process`: which one."""

    def dispatched(self, life: Life, to: HandOver) -> None:
        """That it is handed over is committed; not when a copy is sent again."""

    def read(self, snapshot: Snapshot) -> None:
        """What a new leader found in Redis."""

    def flagged(self, key: bytes, row: dict[str, Any] | None) -> None:
        """What an operator has said is committed (core/operators/flag_commands.py)."""

    def asked(self, uuid: str) -> None:
        """An operator's command is in its queue."""

    def operated(self, uuid: str, result: dict[str, Any]) -> None:
        """The result of a command is committed."""

    def left(self, life: Life, uuid: str) -> None:
        """That an operation has sent it elsewhere is committed."""

    def reopened(self, life: Life) -> None:
        """A settle turned out not to count."""

    def led(self, lane_epoch: int) -> None:
        """A new leader has raised the lane epoch."""

    def committed(self, lane_epoch: int) -> None:
        """Redis has taken a commit of this leader."""

    def taken(self, incarnation: str, *, marked: bool) -> None:
        """The end of an incarnation is committed; `marked`: behind a marker for its latest connection."""

    def leading(self, lane: Lane) -> None:
        """A new leader has a core."""

    def at_end(self) -> None:
        """All is quiet: faults are over, everything should be done."""
