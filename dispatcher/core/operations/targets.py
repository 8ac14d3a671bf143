"""Where operators may send a group's messages: not back into the lane, and to nothing of the dispatcher's."""

from __future__ import annotations

from typing import Final

from dispatcher.core.operations.operation import MOVE
from dispatcher.core.operations.orders import Target
from dispatcher.core.operators.commands import Arguments, argument
from dispatcher.core.state import LaneState
from dispatcher.errors import CommandRefused

#: AMQP's limit for names and routing keys.
NAME_BYTES_MAX: Final = 255


def target_argument(state: LaneState, kind: str, arguments: Arguments) -> Target:
    """The target that a command names. Raises CommandRefused. Whether it is there is RabbitMQ's to say."""
    if kind == MOVE:
        queue = _name(arguments, "to")
        if not queue:
            raise CommandRefused("to: must name a queue")
        _refuse_own(state, "to", queue)
        return Target("", queue)
    exchange, key = _name(arguments, "exchange"), _name(arguments, "key")
    if not exchange:
        raise CommandRefused("exchange: must name one (for a queue there is `dispatcher groups move`)")
    _refuse_own(state, "exchange", exchange)
    return Target(exchange, key)


def _name(arguments: Arguments, name: str) -> str:
    value = argument(arguments, name, str)
    if value is None:
        raise CommandRefused(f"{name}: is missing")
    raw = value.encode(errors="replace")
    if raw.decode() != value:
        raise CommandRefused(f"{name}: must be text")
    if len(raw) > NAME_BYTES_MAX:
        raise CommandRefused(f"{name}: must be at most {NAME_BYTES_MAX} bytes")
    return value


def _refuse_own(state: LaneState, argument_name: str, name: str) -> None:
    if name.startswith(state.options.own_prefix):
        raise CommandRefused(f"{argument_name}: {name!r} is the dispatcher's own; name one of yours")
    if argument_name != "to":
        return
    if any(inbound.name == name for inbound in state.inbounds):
        raise CommandRefused(
            f"to: {name!r} is an inbound queue of this lane: the messages would come in again, behind others"
        )
    consumer = state.by_queue.get(name)
    if consumer is not None:
        raise CommandRefused(
            f"to: {name!r} is the queue of consumer {consumer.id!r}, which gets only what it can settle; "
            "`dispatcher rebalance --group` gives it the group"
        )
