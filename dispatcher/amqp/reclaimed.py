"""Messages that come back from the queue of a hand-over consumer, or were rejected by one.

Such a copy says of itself all that is needed to hand it on, or to put it into the dead queue, byte for byte.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.parked import original_of
from dispatcher.amqp.properties import HEADERS, number_of, split_table
from dispatcher.amqp.relay import HEADER_DELIVERY_MODE, Content
from dispatcher.errors import ProtocolViolation
from dispatcher.wire.origin import read_origin
from dispatcher.wire.protocol import (
    BROKER_HEADERS,
    HEADER_ATTEMPT,
    HEADER_DEADLINE,
    HEADER_EXCHANGE,
    HEADER_GROUP,
    HEADER_ID,
    HEADER_ORIGIN,
    HEADER_PREFIX,
    HEADER_ROUTING_KEY,
    HEADER_SEQ,
    HEADER_USER_ID,
    LaneNames,
)

_OURS: Final = HEADER_PREFIX
_FIRST_QUEUE: Final = "x-first-death-queue"
_REASON: Final = "x-first-death-reason"
_STRANGE: Final = "no dispatcher has handed it over"
#: What RabbitMQ adds when a queue gives a message up, or has delivered it before.
_BROKERS: Final = ("x-death", "x-first-death-", "x-last-death-", *BROKER_HEADERS)


class ForwardedCopy(NamedTuple):
    """A copy as a hand-over consumer would get it."""

    content: Content  # as its original's
    seq: int
    attempt: int
    deadline_at_ms: int | None
    reason: str  # why RabbitMQ gave it up; empty: it did not


def read_reclaimed(delivery: Delivery, names: LaneNames, first_header: str | None) -> ForwardedCopy:
    """The message that was read. Raises ProtocolViolation for a message that no dispatcher has handed over:
    only the dispatcher may write to the lane's exchange."""
    if delivery.exchange != names.exchange.encode():
        raise ProtocolViolation(_STRANGE)
    properties, own_prefix = delivery.properties, names.consumer("")
    fields, table_at, table_end = split_table(properties)
    named = {_name(one): one[1 + one[0] :] for one in fields}
    reason = ""
    if _text(named, _FIRST_QUEUE).startswith(own_prefix):  # else these headers came with the original
        reason = _text(named, _REASON) or "rejected"
    kept = [one for one in fields if _is_kept(_name(one), first_header, is_dead=bool(reason))]
    try:
        origin = named[HEADER_ORIGIN][5:].decode()
        read_origin(origin)
        seq, attempt, mode = (
            number_of(named[name]) for name in (HEADER_SEQ, HEADER_ATTEMPT, HEADER_DELIVERY_MODE)
        )
        deadline_at_ms = number_of(named[HEADER_DEADLINE]) if HEADER_DEADLINE in named else None
        content = original_of(properties, kept, table_at, table_end, mode)
        content.exchange, content.routing_key = named[HEADER_EXCHANGE][5:], named[HEADER_ROUTING_KEY][5:]
        content.fingerprint = bytes.fromhex(named[HEADER_ID][5:].decode())
    except (KeyError, ValueError):
        raise ProtocolViolation(_STRANGE) from None
    content.body, content.origin = delivery.body, origin
    content.group = named[HEADER_GROUP][5:] if HEADER_GROUP in named else None
    return ForwardedCopy(content, seq, attempt, deadline_at_ms, reason)


def stranger(delivery: Delivery) -> Content:
    """A message in a queue of ours that no dispatcher put there: its headers are left out."""
    table_only = bytes((HEADERS, 0)) + bytes(4)
    size = len(table_only)
    return Content(
        None, False, None, b"", delivery.exchange, delivery.routing_key, table_only, size, size, delivery.body
    )  # fmt: skip


def _name(one: bytes) -> str:
    return one[1 : 1 + one[0]].decode(errors="replace")


def _text(named: dict[str, bytes], name: str) -> str:
    return named.get(name, b"")[5:].decode(errors="replace")


def _is_kept(name: str, first_header: str | None, *, is_dead: bool) -> bool:
    if name == first_header or (is_dead and name.startswith(_BROKERS)):
        return False
    return name == HEADER_USER_ID or not name.startswith(_OURS)
