"""Orders: what the edges have to do once a step's records are committed, in their order."""

from __future__ import annotations

from typing import Any, NamedTuple

from dispatcher.core.forwarding.orders import ForwardingAction
from dispatcher.core.model import Original
from dispatcher.core.operations.orders import OperationAction
from dispatcher.core.parking.orders import ParkingAction
from dispatcher.core.queue_ids import QueueId
from dispatcher.core.records import Dispatched


class SendCopy(NamedTuple):
    """Publish a copy again: same incarnation, same seq, its present queue. Nothing is committed for it."""

    copy: Dispatched


class SendNotice(NamedTuple):
    """Publish a `dispatch.*` message to a consumer queue (mandatory)."""

    queue: str
    type: str
    body: dict[str, Any]


class PublishMarker(NamedTuple):
    """Publish a marker to the lane's own control queue; it comes back as the event `Marker`."""

    incarnation: str  # or what Evictions has for everybody
    n: int  # of its latest join: a marker for an earlier connection says nothing about this one


class AckInbound(NamedTuple):
    """These originals are settled: ack them. `message.tag` is never 0 here."""

    messages: list[Original]


class DeadLetter(NamedTuple):
    """Publish the original to the dead queue; answer with DeadLetterConfirmed when the broker has it."""

    message: Original
    reason: str


class Reply(NamedTuple):
    """Answer an operator's command."""

    token: Any
    result: dict[str, Any]
    error: str | None


class LogEvent(NamedTuple):
    """Something that an operator will look for in the log."""

    event: str
    fields: dict[str, Any]
    is_warning: bool = False  # he has to change something
    is_error: bool = False  # something was lost


class SetWindow(NamedTuple):
    """From now on fetch at most `originals` messages of this inbound queue at a time, beside those that are
    here."""

    inbound: QueueId
    originals: int


class LookUp:
    """Which of these ids (each with its message's fingerprint) are in the window: asked with the step's
    commit. The action is to report `IdsLookedUp`.

    `known` is the answer, one byte for each: `1` if it is. None: Redis lost it with other writes.
    """

    __slots__ = ("ids", "known")

    def __init__(self, ids: list[tuple[bytes, bytes]]) -> None:
        self.ids = ids
        self.known: bytes | None = None


Action = (
    Dispatched | SendCopy | SendNotice | PublishMarker | AckInbound | DeadLetter | Reply | LogEvent
    | SetWindow | LookUp | ParkingAction | OperationAction | ForwardingAction
)  # fmt: skip
