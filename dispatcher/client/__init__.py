"""The client: receive the messages of a lane in order, and send messages that have a group.

`GroupConsumer` and `GroupProducer` are asynchronous (on aio-pika), `BlockingGroupConsumer` and
`BlockingGroupProducer` are for threads (on pika). docs/protocol.md says what they do on the wire.
"""

from dispatcher.client.blocking_consumer import BlockingGroupConsumer
from dispatcher.client.blocking_producer import BlockingGroupProducer
from dispatcher.client.consumer import GroupConsumer
from dispatcher.client.copies import BlockingMessage, Message
from dispatcher.client.links import Tls
from dispatcher.client.producer import GroupProducer
from dispatcher.client.properties import Properties
from dispatcher.client.retries import RejectMessage, RetryLater

__all__ = [
    "GroupConsumer",
    "Message",
    "BlockingGroupConsumer",
    "BlockingMessage",
    "GroupProducer",
    "BlockingGroupProducer",
    "RetryLater",
    "RejectMessage",
    "Properties",
    "Tls",
]
