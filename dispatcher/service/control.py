"""Reads what consumers publish to the control exchange."""

from __future__ import annotations

from dispatcher.amqp.events import Delivery
from dispatcher.errors import ProtocolViolation
from dispatcher.protocol import ControlMessage, Heartbeat, Join, LaneNames, decode_control


def read_control(delivery: Delivery, names: LaneNames, *, is_heartbeat_queue: bool) -> ControlMessage:
    """The message of a delivery from the control or the heartbeat queue.

    Raises ProtocolViolation for what can't be understood, came over the wrong queue, or names our queue.
    """
    message = decode_control(delivery.body)
    if isinstance(message, Join) and names.is_ours(message.queue):
        raise ProtocolViolation(f"queue: {message.queue!r} is the lane's own")
    if isinstance(message, Heartbeat) != is_heartbeat_queue:
        kind, key = type(message).__name__.lower(), delivery.routing_key.decode(errors="replace")
        raise ProtocolViolation(f"a {kind} must not be published with the routing key {key!r}")
    return message
