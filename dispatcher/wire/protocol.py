"""The wire contract: every name, header and control message that other programs see.

Both sides of the wire import this module (service and SDK), so it does no I/O and imports nothing of
the product but the errors. docs/protocol.md says the same in words for other languages.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import reprlib
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dispatcher.errors import ProtocolViolation
from dispatcher.wire.bundle import BundleLimits, read_limits
from dispatcher.wire.json_fields import SHORT_STRING_BYTES_MAX, integer, is_integer, items, json_object, text

PROTOCOL_VERSION: Final = 1
_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode
DEFAULT_PREFIX: Final = "dispatch"

HEADER_GROUP: Final = "x-dispatch-group"
#: The same in base64, if its bytes are not UTF-8.
HEADER_GROUP_BASE64: Final = "x-dispatch-group-base64"
HEADER_SEQ: Final = "x-dispatch-seq"
HEADER_GROUP_SEQ: Final = "x-dispatch-group-seq"
HEADER_EPOCH: Final = "x-dispatch-epoch"
HEADER_ATTEMPT: Final = "x-dispatch-attempt"
HEADER_CALLS: Final = "x-dispatch-calls"
HEADER_ID: Final = "x-dispatch-id"
HEADER_DEADLINE: Final = "x-dispatch-deadline"
HEADER_USER_ID: Final = "x-dispatch-user-id"
HEADER_REASON: Final = "x-dispatch-reason"
HEADER_ORIGIN: Final = "x-dispatch-origin"
HEADER_EXCHANGE: Final = "x-dispatch-exchange"
HEADER_ROUTING_KEY: Final = "x-dispatch-routing-key"
HEADER_MARKER: Final = "x-dispatch-marker"
#: When a message that is replayed came in: milliseconds since 1970.
HEADER_REPLAY: Final = "x-dispatch-replay"
HEADER_TRACEPARENT: Final = "x-dispatch-traceparent"
HEADER_PREFIX: Final = "x-dispatch-"
#: Headers of producers that trace (W3C Trace Context).
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
#: Headers that the broker adds to a redelivery; they are not part of what the producer sent.
HEADER_DELIVERY_COUNT: Final = "x-delivery-count"
BROKER_HEADERS: Final = (HEADER_DELIVERY_COUNT, "x-acquired-count")

TYPE_WELCOME: Final = "dispatch.welcome"
TYPE_WAIT: Final = "dispatch.wait"
TYPE_TAKEN: Final = "dispatch.taken"
TYPE_REJOIN: Final = "dispatch.rejoin"
TYPE_REFUSED: Final = "dispatch.refused"
TYPE_MARKER: Final = "dispatch.marker"
TYPE_PING: Final = "dispatch.ping"
TYPE_BUNDLE: Final = "dispatch.bundle"

KEY_CONTROL: Final = "control"
KEY_HEARTBEAT: Final = "heartbeat"
KEY_COMMAND: Final = "command"
#: A command that waited for longer in the command queue is refused: its sender has given it up.
COMMAND_AGE_MS_MAX: Final = 60_000
#: Commands that only ask. All others change something.
READING_COMMANDS: Final = frozenset(
    {"status", "groups.list", "groups.show", "groups.why", "consumers.list", "dead.stopped"}
)
REASON_EXPIRED: Final = "expired"  # its deadline passed before it was processed

#: Words that name a queue of ours; no segment of a lane name may be one of them.
RESERVED_SEGMENTS: Final = frozenset({
    "in", "ops", "control", "command", "heartbeat", "lock", "witness", "dead", "park", "history", "consumer",
    "rejected",
})  # fmt: skip
_SEGMENT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FINGERPRINT_BYTES: Final = 16
#: Above this a prefetch is a mistake: one consumer would hold more than any look-ahead allows.
PREFETCH_MAX: Final = 60_000
#: Settles are coalesced per half prefetch, so no honest message has more ranges than twice that.
SETTLE_ITEMS_MAX: Final = 2 * PREFETCH_MAX
#: Sequence numbers stay exact in JSON numbers of every language (below 2^53).
SEQ_MAX: Final = 2**53 - 1


def dotted_name_problem(name: str, *, reserved: frozenset[str] = frozenset()) -> str | None:
    """The problem with a lane name or consumer id, or None."""
    for segment in name.split("."):
        if not _SEGMENT.fullmatch(segment):
            return "must be segments of A-Z a-z 0-9 _ - (1 to 64 characters each) joined by dots"
        if segment in reserved:
            return f"must not have the segment {segment!r}, which names a queue of the dispatcher"
    return None


@dataclass(frozen=True, slots=True)
class LaneNames:
    """Every name of one lane on the broker."""

    lane: str
    prefix: str = DEFAULT_PREFIX

    @property
    def exchange(self) -> str:
        return f"{self.prefix}.{self.lane}"

    def _under(self, word: str) -> str:
        return f"{self.prefix}.{self.lane}.{word}"

    def is_ours(self, queue: str) -> bool:
        """Whether a queue of this name is the lane's own, and so no consumer's."""
        return queue.startswith(f"{self.exchange}.")

    @property
    def control_exchange(self) -> str:
        return self._under("in")

    @property
    def command_exchange(self) -> str:
        return self._under("ops")

    @property
    def control(self) -> str:
        return self._under("control")

    @property
    def command(self) -> str:
        return self._under("command")

    @property
    def heartbeat(self) -> str:
        return self._under("heartbeat")

    @property
    def lock(self) -> str:
        return self._under("lock")

    @property
    def witness(self) -> str:
        return self._under("witness")

    @property
    def dead(self) -> str:
        return self._under("dead")

    @property
    def history(self) -> str:
        return self._under("history")

    @property
    def rejected(self) -> str:
        """Where RabbitMQ puts what a hand-over consumer rejects."""
        return self._under("rejected")

    @property
    def entrance(self) -> str:
        """Of a shard: the exchange that leads to its inbound queues (dispatcher.wire.shards)."""
        return self._under("entrance")

    def consumer(self, consumer: str) -> str:
        """The queue of a hand-over consumer; with an empty id what the names of all of them begin with."""
        return self._under(f"consumer.{consumer}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InHand:
    """One message that a joining consumer still has: its numbers as they came in the headers."""

    seq: int
    group: bytes | None
    fingerprint: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A consumer wants messages, or wants them in another queue (`n` larger than before)."""

    consumer: str
    incarnation: str
    n: int
    queue: str
    prefetch: int
    in_hand: tuple[InHand, ...] = ()
    bundle: BundleLimits | None = None  # None: each copy comes alone
    epoch: int = 0  # the highest one that it got; 0: none, or it does not say
    user: str | None = None  # who sent it, where the lane asks for that; not in the body


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMessage:
    seq: int
    reason: str
    attempts: int


class Begun(NamedTuple):
    """What a consumer says of its handlers. It is in its settles and heartbeats if it says so at all."""

    ranges: tuple[tuple[int, int], ...]  # numbers in hand whose processing has begun
    concurrency: int | None = None  # messages that it processes at a time, at most; None: it does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """The consumer's word on messages it received; ranges are inclusive."""

    consumer: str
    incarnation: str
    acked: tuple[tuple[int, int], ...] = ()
    failed: tuple[FailedMessage, ...] = ()
    begun: Begun | None = None
    user: str | None = None  # as of a join


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    consumer: str
    incarnation: str
    user: str | None = None  # as of a join


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    consumer: str
    incarnation: str
    queue: str
    held: int
    last: int
    in_hand: tuple[tuple[int, int], ...] | None = None  # ranges of numbers; None: it does not say
    begun: Begun | None = None
    user: str | None = None  # as of a join


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """The dispatcher's own message to its control queue: all settles before it have been read (section 5
    of docs/architecture.md). `lane_epoch` tells a marker of ours from one of a former leader, `n` one for
    this connection of the incarnation from one for an earlier one, or one about all from that before it."""

    incarnation: str
    lane_epoch: int
    n: int


ControlMessage = Join | Settle | Leave | Heartbeat | Marker


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What an operator asks for through the command queue; `sent_at_ms` is the sender's clock."""

    uuid: str
    name: str
    sent_at_ms: int
    arguments: dict[str, Any] = field(default_factory=dict)


def encode(message: ControlMessage | Command) -> bytes:
    """The JSON body of a control message or command."""
    return _to_json(_as_json(message)).encode()


def _as_json(message: ControlMessage | Command) -> dict[str, Any]:
    match message:
        case Join():
            in_hand = [[m.seq, _to_base64(m.group), m.fingerprint.hex()] for m in message.in_hand]
            return {
                "type": "join", "protocol": PROTOCOL_VERSION, "consumer": message.consumer,
                "incarnation": message.incarnation, "n": message.n, "queue": message.queue,
                "prefetch": message.prefetch, "in_hand": in_hand,
                **({} if message.bundle is None else {"bundle": message.bundle._asdict()}),
                **({} if not message.epoch else {"epoch": message.epoch}),
            }  # fmt: skip
        case Settle():
            failed = [{"seq": f.seq, "reason": f.reason, "attempts": f.attempts} for f in message.failed]
            return {
                "type": "settle", "consumer": message.consumer, "incarnation": message.incarnation,
                "acked": [list(pair) for pair in message.acked], "failed": failed,
                **_begun_fields(message.begun),
            }  # fmt: skip
        case Leave():
            return {"type": "leave", "consumer": message.consumer, "incarnation": message.incarnation}
        case Heartbeat():
            return {
                "type": "heartbeat", "consumer": message.consumer, "incarnation": message.incarnation,
                "queue": message.queue, "held": message.held, "last": message.last,
                **({} if message.in_hand is None else {"in_hand": [list(each) for each in message.in_hand]}),
                **_begun_fields(message.begun),
            }  # fmt: skip
        case Marker():
            return {
                "type": "marker", "incarnation": message.incarnation,
                "lane_epoch": message.lane_epoch, "n": message.n,
            }  # fmt: skip
        case Command():
            return {
                "type": "command", "uuid": message.uuid, "name": message.name,
                "sent_at_ms": message.sent_at_ms, "arguments": message.arguments,
            }  # fmt: skip


def decode_control(body: bytes) -> ControlMessage:
    """Read a control message; unknown fields are ignored, so that later protocols can add some.

    Raises ProtocolViolation, which names the field and what it must be.
    """
    fields = json_object(body)
    match fields.get("type"):
        case "settle":
            return _decode_settle(fields)
        case "heartbeat":
            return Heartbeat(
                consumer=_name(fields, "consumer"), incarnation=text(fields, "incarnation"),
                queue=text(fields, "queue"), held=integer(fields, "held", 0, SEQ_MAX),
                last=integer(fields, "last", 0, SEQ_MAX),
                in_hand=_ranges(fields, "in_hand") if "in_hand" in fields else None, begun=_begun(fields),
            )  # fmt: skip
        case "join":
            return _decode_join(fields)
        case "leave":
            return Leave(consumer=_name(fields, "consumer"), incarnation=text(fields, "incarnation"))
        case "marker":
            return Marker(
                incarnation=text(fields, "incarnation"), n=integer(fields, "n", 1, SEQ_MAX),
                lane_epoch=integer(fields, "lane_epoch", 0, SEQ_MAX),
            )  # fmt: skip
        case other:
            raise ProtocolViolation(f"unknown control message type {reprlib.repr(other)}")


def refusable_join(body: bytes) -> str | None:
    """The queue in which the sender of a join that can't be read waits for an answer, None if it is none."""
    try:
        fields = json_object(body)
        return text(fields, "queue") if fields.get("type") == "join" else None
    except ProtocolViolation:
        return None


def claimed_sender(body: bytes) -> dict[str, str]:
    """Who says that a control message is from them, as far as one that can't be read tells."""
    try:
        fields = json_object(body)
    except ProtocolViolation:
        return {}
    claimed = ((key, fields.get(key)) for key in ("consumer", "incarnation"))
    return {key: value[:SHORT_STRING_BYTES_MAX] for key, value in claimed if isinstance(value, str)}


def decode_command(body: bytes) -> Command:
    """Read an operator's command. Raises ProtocolViolation."""
    fields = json_object(body)
    arguments = fields.get("arguments", {})
    if not isinstance(arguments, dict):
        raise ProtocolViolation("arguments: must be an object")
    return Command(
        uuid=text(fields, "uuid"), name=text(fields, "name"),
        sent_at_ms=integer(fields, "sent_at_ms", 0, SEQ_MAX), arguments=arguments,
    )  # fmt: skip


def _decode_join(fields: dict[str, Any]) -> Join:
    version = fields.get("protocol")
    if version != PROTOCOL_VERSION:
        raise ProtocolViolation(f"protocol: must be {PROTOCOL_VERSION}, not {reprlib.repr(version)}")
    return Join(
        consumer=_name(fields, "consumer"), incarnation=text(fields, "incarnation"),
        n=integer(fields, "n", 1, SEQ_MAX), queue=text(fields, "queue"),
        prefetch=integer(fields, "prefetch", 1, PREFETCH_MAX),
        in_hand=_all_in_hand(items(fields, "in_hand", PREFETCH_MAX)), bundle=read_limits(fields),
        epoch=integer(fields, "epoch", 0, SEQ_MAX) if "epoch" in fields else 0,
    )  # fmt: skip


def _all_in_hand(items: list[Any]) -> tuple[InHand, ...]:
    seqs: set[int] = set()
    in_hand = tuple(map(_in_hand, items))
    for message in in_hand:
        if message.seq in seqs:
            raise ProtocolViolation(f"in_hand: seq {message.seq} is named twice")
        seqs.add(message.seq)
    return in_hand


def _in_hand(item: Any) -> InHand:
    if not isinstance(item, list) or len(item) != 3:
        raise ProtocolViolation("in_hand: each must be [seq, group in base64 or null, x-dispatch-id]")
    seq, group, identity = item
    if not is_integer(seq, 1, SEQ_MAX):
        raise ProtocolViolation("in_hand: seq must be a positive integer")
    try:
        raw_group = None if group is None else base64.b64decode(group, validate=True)
        fingerprint = bytes.fromhex(identity)
    except (TypeError, ValueError, binascii.Error):
        raise ProtocolViolation("in_hand: group must be base64 or null, x-dispatch-id hexadecimal") from None
    if len(fingerprint) != _FINGERPRINT_BYTES:  # the journal keeps exactly this many
        raise ProtocolViolation(f"in_hand: x-dispatch-id must be {2 * _FINGERPRINT_BYTES} hexadecimal digits")
    return InHand(seq=seq, group=raw_group, fingerprint=fingerprint)


def _decode_settle(fields: dict[str, Any]) -> Settle:
    failed = tuple(_failed(item) for item in items(fields, "failed", SETTLE_ITEMS_MAX))
    return Settle(
        consumer=_name(fields, "consumer"), incarnation=text(fields, "incarnation"),
        acked=_ranges(fields, "acked"), failed=failed, begun=_begun(fields),
    )  # fmt: skip


def _begun(fields: dict[str, Any]) -> Begun | None:
    if "begun" not in fields:
        return None
    concurrency = integer(fields, "concurrency", 1, SEQ_MAX) if "concurrency" in fields else None
    return Begun(_ranges(fields, "begun"), concurrency)


def _begun_fields(begun: Begun | None) -> dict[str, Any]:
    if begun is None:
        return {}
    told: dict[str, Any] = {"begun": [list(each) for each in begun.ranges]}
    return told if begun.concurrency is None else {**told, "concurrency": begun.concurrency}


def _ranges(fields: dict[str, Any], name: str) -> tuple[tuple[int, int], ...]:
    ranges = []
    for item in items(fields, name, SETTLE_ITEMS_MAX):
        if not (isinstance(item, list) and len(item) == 2 and all(is_integer(n, 1, SEQ_MAX) for n in item)):
            raise ProtocolViolation(f"{name}: each must be [first seq, last seq]")
        ranges.append((item[0], item[1]))
    return tuple(ranges)


def _failed(item: Any) -> FailedMessage:
    if not isinstance(item, dict):
        raise ProtocolViolation("failed: each must be an object with seq, reason and attempts")
    attempts = item.get("attempts", 1)
    if not is_integer(attempts, 1, SEQ_MAX):
        raise ProtocolViolation(f"attempts: must be an integer from 1 to {SEQ_MAX}")
    reason = item.get("reason", "failed")
    if not isinstance(reason, str):
        raise ProtocolViolation("reason: must be a string")
    reason = reason.encode(errors="replace").decode()  # JSON can hold lone surrogates
    return FailedMessage(seq=integer(item, "seq", 1, SEQ_MAX), reason=reason, attempts=attempts)


def _name(fields: dict[str, Any], key: str) -> str:
    value = text(fields, key)
    if problem := dotted_name_problem(value):
        raise ProtocolViolation(f"{key}: {problem}")
    return value


def _to_base64(group: bytes | None) -> str | None:
    return None if group is None else base64.b64encode(group).decode()
