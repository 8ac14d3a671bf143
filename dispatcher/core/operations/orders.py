"""Orders of operations: their markers, and where `groups move` and `groups reroute` send messages."""

from __future__ import annotations

from typing import NamedTuple

from dispatcher.core.model import Original
from dispatcher.core.queue_ids import QueueId


class PublishBarrier(NamedTuple):
    """Publish this command's marker to an inbound queue; it comes back as a `BarrierMark`."""

    inbound: QueueId
    command: str


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
    """Publish the original to the operation's target; answer with TransferConfirmed or TransferRefused."""

    operation: str
    message: Original


class CloseTarget(NamedTuple):
    """The operation has ended: send nothing more to its target."""

    operation: str


TargetAction = OpenTarget | SendTransfer | CloseTarget
OperationAction = PublishBarrier | TargetAction
