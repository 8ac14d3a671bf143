"""What a connection reports, in the order of the wire. Names and contents are bytes as they came."""

from __future__ import annotations

from typing import NamedTuple


class Delivery(NamedTuple):
    """A message for a consumer of ours. `tag` counts up from 1 on each channel."""

    channel: int
    consumer_tag: bytes
    tag: int
    redelivered: bool
    exchange: bytes
    routing_key: bytes
    properties: bytes  # property flags and property list, exactly as in the header frame
    body: bytes


class Confirmed(NamedTuple):
    """The broker answered a publish, or with `multiple` all unanswered ones up to it."""

    channel: int
    tag: int
    multiple: bool
    nacked: bool  # it did not take the message


class Returned(NamedTuple):
    """A mandatory publish reached no queue. Its confirm always comes after this.

    The broker doesn't say which publish it was: returns come in the order of the publishes, and
    `routing_key` is the one that was published to.
    """

    channel: int
    code: int
    text: str
    exchange: bytes
    routing_key: bytes
    properties: bytes
    body: bytes


class ConsumerCancelled(NamedTuple):
    """The broker ended a consumer of ours: its queue was deleted or failed over."""

    channel: int
    consumer_tag: bytes


class ChannelClosed(NamedTuple):
    """The broker closed a channel; (0, 0) when no method of ours is to blame."""

    channel: int
    code: int
    text: str
    class_id: int
    method_id: int


class Blocked(NamedTuple):
    """The broker reads no more from this connection until `Unblocked` (memory or disk alarm)."""

    reason: str


class Unblocked(NamedTuple):
    """The alarm has ended."""


class ConnectionClosed(NamedTuple):
    """The connection has ended; no event follows this one.

    `code` is AMQP's reply code: 200 after our own close, 501 when the broker sent what AMQP does not
    allow, 0 when the connection was lost without a word. `class_id` and `method_id` name the method at which
    RabbitMQ failed; 0: it names none.
    """

    code: int
    text: str
    class_id: int = 0
    method_id: int = 0


ConnectionEvent = (
    Delivery
    | Confirmed
    | Returned
    | ConsumerCancelled
    | ChannelClosed
    | Blocked
    | Unblocked
    | ConnectionClosed
)


class Fetched(NamedTuple):
    """A message that was asked for with basic.get: a reply, never an event."""

    tag: int
    redelivered: bool
    exchange: bytes
    routing_key: bytes
    message_count: int
    properties: bytes
    body: bytes
