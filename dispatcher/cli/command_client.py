"""Commands to the active dispatcher of a lane: through RabbitMQ, so it may run anywhere.

A command is a persistent message to the lane's `ops` exchange; the answer comes by direct reply-to on the
same channel. Its uuid makes it safe to send again: a repeated one gets the recorded result.
"""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any, Final

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from dispatcher.cli import options
from dispatcher.cli.rabbitmq import OperatorConnection, connected
from dispatcher.errors import BrokerUnavailable, ChannelRefused, CommandRefused, NoAnswer, ProtocolViolation
from dispatcher.settings.units import format_duration
from dispatcher.wire import protocol
from dispatcher.wire.protocol import Command, LaneNames

REPLY_TO: Final = "amq.rabbitmq.reply-to"
_PERSISTENT: Final = 2


def ask_lane(file: Path, lane: str, name: str, arguments: dict[str, Any], timeout_ms: int) -> dict[str, Any]:
    """Send one command to a lane that this configuration file has; see ask."""
    settings = options.load_settings(file)
    names = options.lane_names(settings, lane)
    with connected(settings.rabbitmq, name) as connection:
        return ask(connection, names, name, arguments, timeout_ms=timeout_ms)


def ask(
    connection: OperatorConnection,
    names: LaneNames,
    name: str,
    arguments: dict[str, Any],
    *,
    timeout_ms: int,
) -> dict[str, Any]:
    """Send a command to a lane and wait for its result.

    Raises CommandRefused with the dispatcher's own words, NoAnswer when none came in time, and
    BrokerUnavailable when the command could not be handed to RabbitMQ.
    """
    return send(connection, names, new_command(name, arguments), timeout_ms=timeout_ms)


def new_command(name: str, arguments: dict[str, Any], command_uuid: str | None = None) -> Command:
    """A command as of now; with the uuid of an earlier one it is that one, repeated."""
    return Command(
        uuid=command_uuid or str(uuid.uuid4()), name=name, sent_at_ms=int(time.time() * 1_000),
        arguments=arguments,
    )  # fmt: skip


def send(
    connection: OperatorConnection, names: LaneNames, command: Command, *, timeout_ms: int
) -> dict[str, Any]:
    """The same for a command that is made already: to send it again is safe."""
    try:
        channel = connection.channel()
        replies = _publish(channel, names, command, connection.user)
        deadline = time.monotonic() + timeout_ms / 1_000
        while not replies:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _no_answer(names, command, timeout_ms)
            connection.process_data_events(time_limit=left)
    except ChannelClosedByBroker as error:
        if connection.user is None or "user_id property" not in error.reply_text:
            raise _refusal(names, error) from None
        connection.user = None  # a token's user has another name than the URL's
        return send(connection, names, command, timeout_ms=timeout_ms)
    except (UnroutableError, NackError):
        raise BrokerUnavailable(
            f"lane {names.lane}: RabbitMQ could not store the command (queue {names.command}); "
            "start its dispatcher, which declares the queue"
        ) from None
    channel.close()
    return _result(replies[0])


def _no_answer(names: LaneNames, command: Command, timeout_ms: int) -> NoAnswer:
    """The command may have been carried out, or the next leader may still do it; the text says so."""
    text = f"no dispatcher answered for lane {names.lane} within {format_duration(timeout_ms)}: "
    if command.name not in protocol.READING_COMMANDS:
        later = format_duration(protocol.COMMAND_AGE_MS_MAX)
        text += f"{command.name} may be done, or may yet be done within {later} after it was sent; "
    return NoAnswer(f"{text}is one running, and is it ready (/readyz)?")


def _publish(channel: BlockingChannel, names: LaneNames, command: Command, user: str | None) -> list[bytes]:
    """Send it; the list that the answer will be put in."""
    replies: list[bytes] = []

    def on_reply(_channel: Any, _method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        if properties.correlation_id == command.uuid:
            replies.append(body)

    channel.basic_consume(REPLY_TO, on_reply, auto_ack=True)
    channel.confirm_delivery()
    properties = pika.BasicProperties(
        content_type="application/json",
        delivery_mode=_PERSISTENT,
        reply_to=REPLY_TO,
        correlation_id=command.uuid,
        message_id=command.uuid,
        user_id=user,
    )
    body = protocol.encode(command)
    channel.basic_publish(names.command_exchange, protocol.KEY_COMMAND, body, properties, mandatory=True)
    return replies


def _refusal(names: LaneNames, error: ChannelClosedByBroker) -> BrokerUnavailable:
    if error.reply_code == 404:
        return BrokerUnavailable(
            f"lane {names.lane} does not exist on RabbitMQ: there is no exchange {names.command_exchange} "
            "(a dispatcher declares it when it first runs the lane)"
        )
    return ChannelRefused(error.reply_code, error.reply_text)


def _result(body: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        reply = None
    if isinstance(reply, dict):
        if isinstance(reply.get("error"), str):
            raise CommandRefused(reply["error"])
        if isinstance(reply.get("result"), dict):
            return dict(reply["result"])
    raise ProtocolViolation("the dispatcher's answer is not understood: is it of another version?")
