"""The demo's queues on the broker: how many messages are left in them, and their removal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError

from dispatcher.errors import BrokerUnavailable
from dispatcher.service.topology import own_exchanges, possible_queues
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
        for queue in (*possible_queues(names), *inbound):
            channel.queue_delete(queue)
        for exchange in own_exchanges(names):
            channel.exchange_delete(exchange)
