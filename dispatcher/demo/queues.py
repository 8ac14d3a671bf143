"""The demo's queues on the broker: how many messages are left in them, and their removal."""

from __future__ import annotations

from collections.abc import Iterable

import pika
import pika.exceptions

from dispatcher.errors import BrokerUnavailable
from dispatcher.wire.protocol import LaneNames


def counts(amqp_url: str, queues: Iterable[str]) -> dict[str, int]:
    """How many messages are ready in each queue. Raises BrokerUnavailable."""
    try:
        with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
            channel = connection.channel()
            return {
                queue: channel.queue_declare(queue, passive=True).method.message_count for queue in queues
            }
    except pika.exceptions.AMQPError as error:
        raise BrokerUnavailable(f"RabbitMQ does not answer: {error!r}") from error


def remove(amqp_url: str, names: LaneNames, inbound: Iterable[str]) -> None:
    """Delete everything of one lane, and its inbound queues. Raises BrokerUnavailable."""
    try:
        with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
            channel = connection.channel()
            for queue in (
                names.control, names.command, names.heartbeat, names.lock, names.witness, names.dead,
                *inbound,
            ):  # fmt: skip
                channel.queue_delete(queue)
            for exchange in (names.exchange, names.control_exchange, names.command_exchange):
                channel.exchange_delete(exchange)
    except pika.exceptions.AMQPError as error:
        raise BrokerUnavailable(f"RabbitMQ does not answer: {error!r}") from error
