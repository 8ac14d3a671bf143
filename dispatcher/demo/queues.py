"""The demo's queues on the broker: how many messages are left in them, and their removal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError

from dispatcher.core.parking.queue import PARKING_QUEUES_MAX
from dispatcher.errors import BrokerUnavailable
from dispatcher.service.topology import parking_queues
from dispatcher.wire.protocol import LaneNames


@contextmanager
def _channel(amqp_url: str) -> Iterator[BlockingChannel]:
    """Raises BrokerUnavailable, also for what fails within."""
    try:
        with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
            yield connection.channel()
    except (AMQPError, AMQPConnectorException, OSError) as error:
        raise BrokerUnavailable(f"RabbitMQ does not answer: {error!r}") from error


def counts(amqp_url: str, queues: Iterable[str]) -> dict[str, int]:
    """How many messages are ready in each queue. Raises BrokerUnavailable."""
    with _channel(amqp_url) as channel:
        return {queue: channel.queue_declare(queue, passive=True).method.message_count for queue in queues}


def remove(amqp_url: str, names: LaneNames, inbound: Iterable[str]) -> None:
    """Delete everything of one lane, and its inbound queues. Raises BrokerUnavailable.

    The dispatcher deletes a parking queue seconds after its last message (P-5). It may have been stopped
    before.
    """
    with _channel(amqp_url) as channel:
        for queue in (
            names.control, names.command, names.heartbeat, names.lock, names.witness, names.dead,
            *parking_queues(names, PARKING_QUEUES_MAX), *inbound,
        ):  # fmt: skip
            channel.queue_delete(queue)
        for exchange in (names.exchange, names.control_exchange, names.command_exchange):
            channel.exchange_delete(exchange)
