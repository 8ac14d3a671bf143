"""What the consumer's state machines order: their shells carry it out, in sequence."""

from __future__ import annotations

from typing import Any, NamedTuple

from dispatcher.wire.protocol import KEY_CONTROL, KEY_HEARTBEAT, ControlMessage, Heartbeat


class OpenQueue(NamedTuple):
    """Declare, bind and consume a new queue, over a new connection if there is none.

    Answer with queue_opened or connection_lost. An older queue goes when the new one was announced.
    """

    reason: str


class Publish(NamedTuple):
    """Publish to the lane's control exchange. Report the broker's confirm when `token` isn't 0."""

    token: int
    message: ControlMessage

    @property
    def routing_key(self) -> str:
        return KEY_HEARTBEAT if isinstance(self.message, Heartbeat) else KEY_CONTROL


class Lose(NamedTuple):
    """These messages belong to another consumer now: cancel the work on them."""

    messages: list[Any]
    reason: str


class Finish(NamedTuple):
    """The consumer has ended: close the connection. `error` says why if the application did not ask for
    it."""

    error: Exception | None


MemberOrder = OpenQueue | Publish | Lose | Finish
