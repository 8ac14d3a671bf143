"""Orders about where operators send messages (`groups move`, `groups reroute`); `effects` has the union."""

from __future__ import annotations

from typing import NamedTuple

from dispatcher.core.model import Original


class Target(NamedTuple):
    """Where an operation sends messages; without an exchange the queue of that name, past all bindings."""

    exchange: str
    key: str

    def __str__(self) -> str:
        return f"exchange {self.exchange!r}" if self.exchange else f"queue {self.key!r}"


class OpenTarget(NamedTuple):
    """Look whether the target is there; answer with TargetOpened or TargetRefused."""

    operation: str
    target: Target


class SendTransfer(NamedTuple):
    """Publish the original to the operation's target; answer with MessageLeft or MessageStays."""

    operation: str
    message: Original


class CloseTarget(NamedTuple):
    """The operation has ended: send nothing more to its target."""

    operation: str


TargetAction = OpenTarget | SendTransfer | CloseTarget
