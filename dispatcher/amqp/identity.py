"""Which message an original is, by its producer's word: its `message_id`."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.grouping import header_key
from dispatcher.amqp.properties import MESSAGE_ID, split_table, string_property
from dispatcher.amqp.relay import FINGERPRINT_BYTES, Content
from dispatcher.errors import ProtocolViolation
from dispatcher.wire.protocol import HEADER_ORIGIN

_ORIGIN: Final = header_key(HEADER_ORIGIN)


def id_of(content: Content, delivery: Delivery) -> bytes | None:
    """As many bytes as a fingerprint has, made of its `message_id`. None: it has none, or it was here before
    and was sent back: what left for the dead queue, or for where an operator sent it, carries its origin."""
    if not content.properties[1] & MESSAGE_ID:
        return None
    message_id = string_property(content.properties, content.table_end, "message_id")
    if not message_id or was_here(delivery.properties):
        return None
    return blake2b(message_id, digest_size=FINGERPRINT_BYTES).digest()


def was_here(properties: bytes) -> bool:
    """Whether the message has been through a lane before: messages from a dead queue, from an operator's
    move, and replayed ones name their origin."""
    try:
        return _ORIGIN in properties and any(one.startswith(_ORIGIN) for one in split_table(properties)[0])
    except ProtocolViolation:
        return False
