"""The client: receive the messages of a lane in order, and send messages that have a group.

`GroupConsumer` and `GroupProducer` are asynchronous (on aio-pika), `BlockingGroupConsumer` and
`BlockingGroupProducer` are for threads (on pika). docs/sdk.md shows how to use them, docs/protocol.md
says what they do on the wire. `dispatcher.client.testing` runs handlers without a network.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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

_MODULES: Final = {
    "BlockingGroupConsumer": "blocking_consumer",
    "BlockingGroupProducer": "blocking_producer",
    "GroupConsumer": "consumer",
    "BlockingMessage": "copies",
    "Message": "copies",
    "Tls": "links",
    "GroupProducer": "producer",
    "Properties": "properties",
    "RejectMessage": "retries",
    "RetryLater": "retries",
}

if not TYPE_CHECKING:  # to a type checker it would mean that every name exists

    def __getattr__(name: str) -> Any:
        """Imports at first use: the asynchronous half needs no pika, and neither does the service."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
