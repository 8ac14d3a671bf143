"""Which message an original is, by its producer's word, its `message_id`; and whether it was here before."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import Grouping, header_key
from dispatcher.amqp.properties import MESSAGE_ID, split_table, string_property, user_property
from dispatcher.amqp.relay import FINGERPRINT_BYTES, Content
from dispatcher.errors import ProtocolViolation
from dispatcher.wire.protocol import HEADER_ORIGIN

_ORIGIN: Final = header_key(HEADER_ORIGIN)


def id_of(content: Content) -> bytes | None:
    """As many bytes as a fingerprint has, made of its `message_id`; None: it has none."""
    if not content.properties[1] & MESSAGE_ID:
        return None
    message_id = string_property(content.properties, content.table_end, "message_id")
    return blake2b(message_id, digest_size=FINGERPRINT_BYTES).digest() if message_id else None


class SentBack:
    """Recognises messages that have been through a lane before, and were sent back: those from a dead queue,
    from an operator's move, and replayed ones name their origin.

    A producer can write that header, too. So it counts only of what came through an exchange that producers
    have no right to write to, or what the dispatcher's own `user` published, as RabbitMQ has validated.
    """

    def __init__(self, grouping: Grouping, user: str | None) -> None:
        self._grouping = grouping
        self._user = user

    def has(self, delivery: Delivery) -> bool:
        properties = delivery.properties
        if _ORIGIN not in properties:
            return False
        try:
            names_origin = any(one.startswith(_ORIGIN) for one in split_table(properties)[0])
        except ProtocolViolation:
            return False
        return names_origin and (self._grouping.trusts(delivery.exchange) or self._is_ours(properties))

    def _is_ours(self, properties: bytes) -> bool:
        return self._user is not None and user_property(properties) == self._user
