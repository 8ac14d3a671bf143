"""AMQP 0-9-1 from the client's side, without I/O.

Bytes go in with `receive_data`, events come out; bytes to send are collected until `data_to_send`. Time
is an argument in ms of any steady clock; `next_deadline_ms` says when `handle_timer` wants to be called.
Answers to requests are put into `replies` together with the token that the request was given.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any, Final

from pamqp import base, commands

from dispatcher.amqp import wire
from dispatcher.amqp.decoder import Decoder
from dispatcher.amqp.events import (
    Blocked,
    ChannelClosed,
    Confirmed,
    ConnectionClosed,
    ConnectionEvent,
    ConsumerCancelled,
    Delivery,
    Fetched,
    Returned,
    Unblocked,
)  # fmt: skip
from dispatcher.amqp.handshake import Handshake, Login
from dispatcher.amqp.methods import decode_close, decode_first_string, decode_method, encode_method
from dispatcher.errors import BrokerUnavailable, ChannelRefused, ProtocolViolation

CODE_LOST: Final = 0  # without a reason from the broker
CODE_CLOSED: Final = 200  # by us
CODE_FRAME_ERROR: Final = 501

#: AMQP's rule: a peer that was silent for two intervals is gone.
_SILENT_INTERVALS: Final = 2
MethodReply = base.Frame | Fetched | BrokerUnavailable


class ConnectionState(Enum):
    HANDSHAKE = "handshake"
    OPEN = "open"
    CLOSING = "closing"  # we asked for the end and wait for the answer
    CLOSED = "closed"


class Connection:
    """One connection: state, channels, heartbeats, and the frames of both directions."""

    def __init__(self, login: Login, now_ms: int) -> None:
        self.state = ConnectionState.HANDSHAKE
        self.blocked: str | None = None  # the broker's reason, while it reads nothing from us
        self.replies: list[tuple[Any, MethodReply]] = []  # (token, answer), for the owner to take
        self.handshake = Handshake(login)
        self._decoder = Decoder(self._on_method, self._on_fetched)
        self._out: list[bytes] = [wire.PROTOCOL_HEADER]
        self._waiting: dict[int, deque[tuple[base.Frame, Any]]] = {}  # per channel that exists, in order
        self._published: dict[int, int] = {}  # per open channel: publishes since confirm.select
        self._closing: set[int] = set()  # channels that we asked to close
        self._refusals: dict[int, tuple[int, str]] = {}  # why a channel that existed is closed
        self._interval_ms = 0
        self._heard_at_ms = self._sent_at_ms = now_ms
        self._end_text = "the connection is not open yet"

    @property
    def frame_max(self) -> int:
        return self.handshake.frame_max

    @property
    def has_output(self) -> bool:
        """Whether `data_to_send` has something."""
        return bool(self._out)

    def is_over(self) -> bool:
        """Whether the end was reported; nothing is after that."""
        return self.state is ConnectionState.CLOSED

    # --- bytes and time -----------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_ms: int) -> list[ConnectionEvent]:
        """The events in these bytes, in their order. Raises ProtocolViolation when they are not AMQP; the
        connection has ended then, and `data_to_send` has the close for the broker.
        """
        events: list[ConnectionEvent] = []
        if self.state is ConnectionState.CLOSED:
            return events
        self._heard_at_ms = now_ms
        closing = self._closing.copy()
        try:
            self._decoder.feed(data, events)
        except ProtocolViolation as violation:
            if self.state is not ConnectionState.HANDSHAKE:
                close = commands.Connection.Close(CODE_FRAME_ERROR, str(violation)[:80], 0, 0)
                self._out.append(encode_method(0, close))
            self._end(CODE_FRAME_ERROR, str(violation))
            raise
        if closing:
            return [event for event in events if not _is_of(event, closing)]
        return events

    def receive_eof(self, text: str) -> list[ConnectionEvent]:
        """The transport is gone; `text` says why, as far as that is known."""
        return [] if self.state is ConnectionState.CLOSED else [self._end(CODE_LOST, text)]

    def data_to_send(self, now_ms: int) -> bytes:
        """Everything that was queued since the last call."""
        if not self._out:
            return b""
        self._sent_at_ms = now_ms
        data = b"".join(self._out)
        self._out.clear()
        return data

    def next_deadline_ms(self) -> int | None:
        """When `handle_timer` has something to do; None: never, until the handshake goes on."""
        if not self._interval_ms or self.state is ConnectionState.CLOSED:
            return None
        silent_at_ms = self._heard_at_ms + _SILENT_INTERVALS * self._interval_ms
        return min(self._sent_at_ms + self._interval_ms // 2, silent_at_ms)

    def handle_timer(self, now_ms: int) -> list[ConnectionEvent]:
        """Send a heartbeat when nothing else went out for half an interval; end a silent connection."""
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is None or now_ms < deadline_ms:
            return []
        if now_ms - deadline_ms > self._interval_ms // 2:
            # We are called late: this process itself slept, and what the peer sent meanwhile is unread.
            self._heard_at_ms = max(self._heard_at_ms, now_ms - self._interval_ms)
        if now_ms >= self._heard_at_ms + _SILENT_INTERVALS * self._interval_ms:
            return [self._end(CODE_LOST, f"the broker was silent for {_SILENT_INTERVALS} heartbeats")]
        if now_ms >= self._sent_at_ms + self._interval_ms // 2:
            self._out.append(wire.HEARTBEAT)
        return []

    # --- requests -----------------------------------------------------------------------------------

    def open_channel(self, token: Any) -> int:
        """Ask for a new channel; it can be used once the answer to `token` is there."""
        if self.state is not ConnectionState.OPEN:
            raise BrokerUnavailable(self._end_text)
        limit = self.handshake.channel_max
        channel = next((n for n in range(1, limit + 1) if n not in self._waiting), None)
        if channel is None:
            raise BrokerUnavailable(f"all {limit} channels of the connection are in use")
        self._refusals.pop(channel, None)
        self._waiting[channel] = deque()
        self._ask(channel, commands.Channel.Open(), token)
        return channel

    def request(self, channel: int, method: base.Frame, token: Any) -> None:
        """Send a method that the broker answers; answers come in the order of the requests.

        With channel.close the channel ends at once: earlier requests are still answered, its messages and
        confirms are not reported any more, and the answer makes its number free.

        Raises ChannelRefused or BrokerUnavailable when channel or connection are closed.
        """
        if channel not in self._published:
            raise self._closed_error(channel)
        if not method.synchronous or getattr(method, "nowait", False):
            raise ValueError(f"{method.name} (nowait or one-way) has no answer to wait for")
        self._ask(channel, method, token)
        if isinstance(method, commands.Confirm.Select):
            self._published[channel] = 0
        elif isinstance(method, commands.Channel.Close):
            del self._published[channel]
            self._refusals[channel] = (CODE_CLOSED, "the channel was closed by us")
            self._closing.add(channel)

    def send(self, channel: int, method: base.Frame) -> None:
        """Send a method that the broker does not answer. Raises like `request`."""
        if channel not in self._published:
            raise self._closed_error(channel)
        self._out.append(encode_method(channel, method))

    def write(self, channel: int, frames: bytes, publishes: int) -> int:
        """Queue encoded publishes; return the confirm tag of the last one. Raises like `request`."""
        try:
            tag = self._published[channel] + publishes
        except KeyError:
            raise self._closed_error(channel) from None
        self._published[channel] = tag
        self._out.append(frames)
        return tag

    def ack(self, channel: int, tag: int, multiple: bool = False) -> None:
        """Queue a basic.ack. Raises like `request`."""
        if channel not in self._published:
            raise self._closed_error(channel)
        self._out.append(wire.ack_frame(channel, tag, multiple))

    def close(self) -> None:
        """Ask for the end; `ConnectionClosed` comes with the answer, and nothing else before it."""
        if self.state is ConnectionState.OPEN:
            self._fail_requests(BrokerUnavailable("the connection was closed by us"))
            self.state, self._end_text = ConnectionState.CLOSING, "the connection was closed by us"
            self._decoder.mute()
            self._out.append(encode_method(0, commands.Connection.Close(CODE_CLOSED, "closed", 0, 0)))

    def _ask(self, channel: int, method: base.Frame, token: Any) -> None:
        self._out.append(encode_method(channel, method))
        self._waiting[channel].append((method, token))

    def _closed_error(self, channel: int) -> BrokerUnavailable:
        if self.state is not ConnectionState.OPEN:
            return BrokerUnavailable(self._end_text)
        return ChannelRefused(*self._refusals.get(channel, (504, f"channel {channel} is not open")))

    # --- methods of the broker ----------------------------------------------------------------------

    def _on_method(self, channel: int, index: int, arguments: bytes, events: list[ConnectionEvent]) -> None:
        if channel == 0:
            self._on_connection_method(index, arguments, events)
        elif channel not in self._waiting:
            raise ProtocolViolation(f"the broker used channel {channel}, which is not open")
        elif index == wire.CHANNEL_CLOSE:
            self._on_channel_close(channel, arguments, events)
        elif index == wire.BASIC_CANCEL:
            tag, at = decode_first_string(arguments)
            if arguments[at:] == b"\x00":  # not "no-wait": it wants to hear that we know
                self._out.append(wire.method_frame(channel, wire.BASIC_CANCEL_OK, arguments[:at]))
            events.append(ConsumerCancelled(channel, tag))
        else:
            self._on_reply(channel, decode_method(index, arguments))

    def _on_connection_method(self, index: int, arguments: bytes, events: list[ConnectionEvent]) -> None:
        if index == wire.CONNECTION_CLOSE:
            code, text, class_id, method_id = decode_close(arguments)
            self._out.append(wire.method_frame(0, wire.CONNECTION_CLOSE_OK))
            events.append(self._end(code, text)._replace(class_id=class_id, method_id=method_id))
        elif self.state is ConnectionState.HANDSHAKE:
            self._on_handshake(index, arguments)
        elif index == wire.CONNECTION_BLOCKED:
            reason, _ = decode_first_string(arguments)
            self.blocked = reason.decode(errors="replace")
            events.append(Blocked(self.blocked))
        elif index == wire.CONNECTION_UNBLOCKED:
            self.blocked = None
            events.append(Unblocked())
        elif index == wire.CONNECTION_CLOSE_OK and self.state is ConnectionState.CLOSING:
            events.append(self._end(CODE_CLOSED, self._end_text))
        else:
            raise ProtocolViolation(f"the broker sent {decode_method(index, arguments).name} out of order")

    def _on_handshake(self, index: int, arguments: bytes) -> None:
        answer = self.handshake.receive(index, arguments)
        if answer is None:
            self.state = ConnectionState.OPEN
        else:
            self._out.append(answer)
            self._interval_ms = self.handshake.heartbeat_s * 1_000

    def _on_channel_close(self, channel: int, arguments: bytes, events: list[ConnectionEvent]) -> None:
        code, text, class_id, method_id = decode_close(arguments)
        self._out.append(wire.method_frame(channel, wire.CHANNEL_CLOSE_OK))
        # Our own channel.close may have crossed this one. RabbitMQ answers it, or loses it with the process
        # of the channel (seen with 3.10): an answer that comes yet is ignored, as all is until the next open.
        self.replies += (
            (token, commands.Channel.CloseOk())
            if isinstance(request, commands.Channel.Close) else (token, ChannelRefused(code, text))
            for request, token in self._waiting[channel]
        )  # fmt: skip
        self._forget_channel(channel)
        self._refusals[channel] = (code, text)
        events.append(ChannelClosed(channel, code, text, class_id, method_id))

    def _forget_channel(self, channel: int) -> None:
        self._decoder.close_channel(channel)
        self._closing.discard(channel)
        self._published.pop(channel, None)
        del self._waiting[channel]

    def _on_reply(self, channel: int, reply: base.Frame) -> None:
        waiting = self._waiting[channel]
        if not waiting or reply.name not in waiting[0][0].valid_responses:
            raise ProtocolViolation(f"the broker sent {reply.name} without being asked (channel {channel})")
        self.replies.append((waiting.popleft()[1], reply))
        if isinstance(reply, commands.Channel.OpenOk):
            self._decoder.open_channel(channel)
            self._published[channel] = 0
        elif isinstance(reply, commands.Channel.CloseOk):
            self._forget_channel(channel)

    def _on_fetched(self, channel: int, fetched: Fetched) -> None:
        waiting = self._waiting[channel]
        if not waiting or not isinstance(waiting[0][0], commands.Basic.Get):
            raise ProtocolViolation(f"the broker sent Basic.GetOk without being asked (channel {channel})")
        self.replies.append((waiting.popleft()[1], fetched))

    def _fail_requests(self, problem: BrokerUnavailable) -> None:
        self.replies += ((token, problem) for waiting in self._waiting.values() for _, token in waiting)
        self._waiting.clear()
        self._published.clear()

    def _end(self, code: int, text: str) -> ConnectionClosed:
        self.state, self._end_text = ConnectionState.CLOSED, f"{code} {text}" if code else text
        self._decoder.stop()
        self._fail_requests(BrokerUnavailable(self._end_text))
        return ConnectionClosed(code, text)


def _is_of(event: ConnectionEvent, channels: set[int]) -> bool:
    """Whether it is a message, confirm or cancel of one of these channels."""
    return (
        isinstance(event, Delivery | Returned | Confirmed | ConsumerCancelled) and event.channel in channels
    )
