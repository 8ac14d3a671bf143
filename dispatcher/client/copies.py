"""What a consumer receives: copies of messages, with the numbers that the dispatcher gave them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple
from urllib.parse import quote_from_bytes

from dispatcher.client import properties as amqp_properties
from dispatcher.client.begun import BegunMessages
from dispatcher.client.properties import Properties
from dispatcher.client.tables import read_value, text_or_bytes, value_end
from dispatcher.wire import protocol

_PREFIX: Final = protocol.HEADER_PREFIX.encode()
_REPLAY: Final = protocol.HEADER_REPLAY.encode()
_PREFIX_LENGTH: Final = len(_PREFIX)
_TRACEPARENT: Final = protocol.HEADER_TRACEPARENT.encode()[_PREFIX_LENGTH:]
_CONTENT_TYPE_FLAG: Final = 0x80
_CONTENT_ENCODING_FLAG: Final = 0x40
_HEADERS_FLAG: Final = 0x20
_INT64: Final = ord("l")
_STRING: Final = ord("S")
#: A reason is a header of the dead message; a traceback belongs into the log.
REASON_CHARACTERS_MAX: Final = 1_000


class Numbers(NamedTuple):
    """The headers that the dispatcher added to a copy."""

    seq: int
    group: bytes | None  # None: no group
    group_seq: int  # 0: no order check
    epoch: int
    attempt: int
    deadline_at_ms: int | None
    fingerprint: bytes


def read_numbers(raw: bytes) -> Numbers | None:
    """The dispatcher's headers in these properties, or None if they are of no copy.

    Looks at nothing else, so no header of a stranger can break it. Raises ValueError for a malformed list.
    """
    try:
        found = _dispatch_headers(raw)
        seq = found.get(b"seq")
        if not isinstance(seq, int):
            return None
        group_seq, epoch = found.get(b"group-seq", 0), found.get(b"epoch", 0)
        attempt, deadline_at_ms = found.get(b"attempt", 1), found.get(b"deadline")
        fingerprint = bytes.fromhex(found.get(b"id", b"").decode())
    except (IndexError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"the headers of a copy are malformed: {error}") from None
    group = found.get(b"group")
    counted = type(group_seq) is type(epoch) is type(attempt) is int
    if not counted or not isinstance(group, bytes | None) or not isinstance(deadline_at_ms, int | None):
        raise ValueError(f"the headers of copy {seq} have types that the dispatcher does not write")
    return Numbers(seq, group, group_seq, epoch, attempt, deadline_at_ms, fingerprint)


def _dispatch_headers(raw: bytes) -> dict[bytes, Any]:
    """Every `x-dispatch-…` header by the rest of its name; strings as bytes."""
    found: dict[bytes, Any] = {}
    flags, position = raw[0], 2
    if raw[1] & 1 or not flags & _HEADERS_FLAG:
        return found
    if flags & _CONTENT_TYPE_FLAG:
        position += 1 + raw[position]
    if flags & _CONTENT_ENCODING_FLAG:
        position += 1 + raw[position]
    end = position + 4 + int.from_bytes(raw[position : position + 4])
    position += 4
    while position < end:
        name_end = position + 1 + raw[position]
        kind, start = raw[name_end], name_end + 1
        stop = start + 8 if kind == _INT64 else value_end(raw, kind, start)
        if raw.startswith(_PREFIX, position + 1):
            name = raw[position + 1 + _PREFIX_LENGTH : name_end]
            if kind == _INT64:
                found[name] = int.from_bytes(raw[start:stop], signed=True)
            elif kind == _STRING:
                found[name] = raw[start + 4 : stop]
            else:
                found[name] = read_value(raw[start:stop], kind)
        position = stop
    return found


#: Called once for a copy, with the reason of its failure (None: it is done) and the calls with it.
Settler = Callable[[Any, str | None, int], bool]


class Copy:
    """One message handed over to this consumer.

    What every kind of message has; the asynchronous and the blocking one add `ack` and `fail`.
    """

    __slots__ = (
        "_begun", "_decoded", "_raw_properties", "_settler", "attempt", "body", "calls",
        "deadline_at_ms", "epoch", "fingerprint", "group", "group_seq", "lost", "seq", "settled",
    )  # fmt: skip

    def __init__(self, numbers: Numbers, raw_properties: bytes, body: bytes, settler: Settler) -> None:
        self.seq: int
        #: The group as its producer wrote it, None without one.
        self.group: bytes | None
        #: 1, 2, 3 … within the epoch; 0 where no order is kept.
        self.group_seq: int
        #: The fencing number of this assignment of the group: let a database refuse writes with an older one.
        self.epoch: int
        #: Hand-overs of this message so far, this one included. See `calls` for those of the handler.
        self.attempt: int
        #: When it expires, in ms since 1970, or None.
        self.deadline_at_ms: int | None
        #: 16 bytes that identify the original by its content.
        self.fingerprint: bytes
        (
            self.seq, self.group, self.group_seq, self.epoch, self.attempt,
            self.deadline_at_ms, self.fingerprint,
        ) = numbers  # fmt: skip
        self.body = body
        #: Calls of the handler of `run` with this message in this hand-over, the present one included.
        self.calls = 0
        #: True once the message belongs to somebody else: nothing that is done with it counts any more.
        self.lost = False
        #: True once it was acked or failed here.
        self.settled = False
        self._begun: BegunMessages | None = None  # knows what has begun; None: nobody asks
        self._raw_properties = raw_properties
        self._settler = settler
        self._decoded: tuple[Properties, dict[str | bytes, Any]] | None = None

    def _decode(self) -> tuple[Properties, dict[str | bytes, Any]]:
        if self._decoded is None:
            properties, headers = amqp_properties.read(self._raw_properties)
            own = {name: headers.pop(name) for name in list(headers) if _is_ours(name)}
            # The dispatcher relays a user_id in a header of its own: RabbitMQ refuses another user's.
            user_id = own.get(protocol.HEADER_USER_ID, properties.user_id)
            self._decoded = replace(properties, user_id=user_id), headers
        return self._decoded

    @property
    def properties(self) -> Properties:
        """The properties that the producer set."""
        return self._decode()[0]

    @property
    def headers(self) -> dict[str | bytes, Any]:
        """The headers that the producer set. A value that is not UTF-8, or nested absurdly deep, is bytes."""
        return self._decode()[1]

    @property
    def trace_headers(self) -> dict[str, str]:
        """`traceparent` and `tracestate` (W3C Trace Context) for what is done with this message: inside the
        dispatcher's span, or the producer's where the dispatcher has none. Empty: nobody traces it."""
        context = {}
        for name in (protocol.TRACEPARENT, protocol.TRACESTATE):
            value = self.headers.get(name)
            if isinstance(value, str):
                context[name] = value
        ours = _dispatch_headers(self._raw_properties).get(_TRACEPARENT)
        if isinstance(ours, bytes):
            context[protocol.TRACEPARENT] = ours.decode("latin-1")
        return context

    @property
    def group_text(self) -> str | None:
        """The group for people: as text, percent-encoded where it isn't UTF-8."""
        if self.group is None:
            return None
        text = text_or_bytes(self.group)
        return text if isinstance(text, str) else quote_from_bytes(text)

    @property
    def first_for_consumer(self) -> bool:
        """The first of its group since the group was assigned to this consumer: drop what you cached.

        Also true when another dispatcher has taken over meanwhile, which begins a new epoch.
        """
        return self.group_seq == 1

    @property
    def expired(self) -> bool:
        """Its deadline has passed, by this machine's clock."""
        return self.deadline_at_ms is not None and time.time() * 1000 >= self.deadline_at_ms

    def note_in(self, begun: BegunMessages) -> None:
        """`begun` is to know when the application gets this message."""
        self._begun = begun

    def begin(self) -> None:
        """The application has it from now on. Whatever hands it over says so, in the thread that gets it."""
        if self._begun is not None:
            self._begun.add(self.seq)

    @property
    def is_at_risk(self) -> bool:
        """It was handed over before: its consumer may have died of it. Whatever hands it over waits for
        `when_told` first, at most `TOLD_WITHIN_S`, so that another death of it counts (M-1)."""
        return self.attempt > 1

    def when_told(self, call: Callable[[], None]) -> None:
        """Call this when the dispatcher surely hears that it has begun, or can't hear it soon."""
        if self._begun is None:
            call()
        else:
            self._begun.tell_now(call)

    def settle(self, reason: str | None = None, attempts: int = 1) -> bool:
        """Done (no reason), or failed. False: it was lost or settled before, and nothing happens.

        Raises TypeError or ValueError for what the dispatcher would refuse, with all that is settled with it.
        """
        if reason is not None:
            reason = _text(reason)[:REASON_CHARACTERS_MAX]
        if attempts < 1:
            raise ValueError(f"attempts: must be at least 1, not {attempts}")
        if self.lost or self.settled:
            return False
        self.settled = True
        if self._begun is not None:  # in this thread: else the next one that begins seems to be one too many
            self._begun.discard(self.seq)
        return self._settler(self, reason, attempts)

    def __repr__(self) -> str:
        lost = " lost" if self.lost else ""
        return f"<{type(self).__name__} {self.seq} group={self.group_text!r} attempt={self.attempt}{lost}>"


def _text(reason: object) -> str:
    """Raises TypeError. A reason that is None would say that the message is done."""
    if not isinstance(reason, str):
        raise TypeError(f"reason: must be text, not {type(reason).__name__}; str() makes it one")
    return reason


def _is_ours(name: str | bytes) -> bool:
    raw = name.encode() if isinstance(name, str) else name
    return raw.startswith(_PREFIX) and raw != _REPLAY


class Message(Copy):
    """A message for asynchronous code."""

    __slots__ = ()

    async def ack(self) -> bool:
        """It is processed. Returns at once; the settle follows within milliseconds, with others.

        False: the message was lost (see `lost`) or settled before, and nothing happens.
        """
        return self.settle()

    async def fail(self, reason: str) -> bool:
        """It can't be processed: it goes to the lane's dead queue, and the group goes on without it.

        Raises TypeError when the reason is no text.
        """
        return self.settle(_text(reason))


class BlockingMessage(Copy):
    """A message for threads; every method may be called from any of them."""

    __slots__ = ()

    def ack(self) -> bool:
        """It is processed. Returns at once; the settle follows within milliseconds, with others.

        False: the message was lost (see `lost`) or settled before, and nothing happens.
        """
        return self.settle()

    def fail(self, reason: str) -> bool:
        """It can't be processed: it goes to the lane's dead queue, and the group goes on without it.

        Raises TypeError when the reason is no text.
        """
        return self.settle(_text(reason))
