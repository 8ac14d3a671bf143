"""What the edges report of operations: their markers, and where they send messages."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.core.model import Original


class BarrierMark(Original):
    """The marker of an operation's barrier, as an inbound queue delivers it."""

    __slots__ = ("command",)

    is_marker = True
    command: str  # uuid of the operation, perhaps of one that is known no more


@dataclass(frozen=True, slots=True)
class TargetOpened:
    """The target of this operation is there, and messages can be sent to it."""

    operation: str


@dataclass(frozen=True, slots=True)
class TargetRefused:
    """The target of this operation is not there, or not for us."""

    operation: str
    problem: str


@dataclass(frozen=True, slots=True)
class TransferConfirmed:
    """The broker has stored the copy where this operation sends it."""

    operation: str
    message: Original


@dataclass(frozen=True, slots=True)
class TransferRefused:
    """The broker did not take the copy that this operation sends; not known: perhaps it did."""

    operation: str
    message: Original
    problem: str
    is_known: bool


OperationEvent = TargetOpened | TargetRefused | TransferConfirmed | TransferRefused
