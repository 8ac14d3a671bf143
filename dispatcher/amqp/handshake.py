"""From the protocol header to an open vhost, without I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from pamqp import commands

from dispatcher import __version__
from dispatcher.amqp import wire
from dispatcher.amqp.decoder import FRAME_MAX
from dispatcher.amqp.methods import decode_method, encode_method
from dispatcher.errors import ProtocolViolation

#: More channels than any lane needs; RabbitMQ's own default.
CHANNEL_MAX: Final = 2_047
#: The least that AMQP allows; a header frame of ours would hardly fit into less.
_FRAME_MAX_LEAST: Final = 4_096
#: Without the third, wrong credentials are answered with silence and a closed socket.
_CAPABILITIES: Final = (
    "publisher_confirms",
    "basic.nack",
    "authentication_failure_close",
    "connection.blocked",
    "consumer_cancel_notify",
    "exchange_exchange_bindings",
)

_ADVICE: Final = {
    "PLAIN": "use a client certificate (cert_file) and a URL without user",
    "EXTERNAL": "name a user in the URL, or enable rabbitmq_auth_mechanism_ssl on the broker",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Who we are, and what we ask for. Without a user the TLS client certificate says it (EXTERNAL)."""

    user: str | None
    password: str = field(repr=False)
    vhost: str
    name: str  # how the connection is listed by the broker
    heartbeat_s: int  # at least 1; the broker may ask for a shorter one


class Handshake:
    """Answers the broker's side until the vhost is open; then the negotiated limits stand."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self._expected: int = commands.Connection.Start.index
        self.frame_max = FRAME_MAX
        self.channel_max = CHANNEL_MAX
        self.heartbeat_s = 0
        self.server_properties: dict[str, Any] = {}

    def receive(self, index: int, arguments: bytes) -> bytes | None:
        """What to answer to this method; None: the vhost is open. Raises ProtocolViolation."""
        method = decode_method(index, arguments)
        if index != self._expected:
            raise ProtocolViolation(f"the broker sent {method.name} in the middle of the handshake")
        if isinstance(method, commands.Connection.Start):
            self._expected = commands.Connection.Tune.index
            return self._start_ok(method)
        if isinstance(method, commands.Connection.Tune):
            self._expected = commands.Connection.OpenOk.index
            return self._tune_ok(method)
        return None

    def _start_ok(self, start: commands.Connection.Start) -> bytes:
        self.server_properties = start.server_properties
        mechanism = "PLAIN" if self.login.user is not None else "EXTERNAL"
        if mechanism not in str(start.mechanisms).split():
            raise ProtocolViolation(
                f"the broker offers {start.mechanisms}, not {mechanism}: {_ADVICE[mechanism]}"
            )
        response = "" if self.login.user is None else f"\0{self.login.user}\0{self.login.password}"
        properties: dict[str, Any] = {
            "product": "dispatcher",
            "version": __version__,
            "connection_name": self.login.name,
            "capabilities": dict.fromkeys(_CAPABILITIES, True),
        }
        return encode_method(0, commands.Connection.StartOk(properties, mechanism, response, "en_US"))

    def _tune_ok(self, tune: commands.Connection.Tune) -> bytes:
        self.frame_max = _agreed(tune.frame_max, FRAME_MAX)
        self.channel_max = _agreed(tune.channel_max, CHANNEL_MAX)
        self.heartbeat_s = _agreed(tune.heartbeat, self.login.heartbeat_s)
        if self.frame_max < _FRAME_MAX_LEAST:
            raise ProtocolViolation(
                f"the broker allows frames of {self.frame_max} bytes, AMQP asks for {_FRAME_MAX_LEAST}"
            )
        tune_ok = commands.Connection.TuneOk(self.channel_max, self.frame_max, self.heartbeat_s)
        vhost = wire.short_string(self.login.vhost) + b"\x00\x00"
        return encode_method(0, tune_ok) + wire.method_frame(0, wire.CONNECTION_OPEN, vhost)


def _agreed(theirs: int, ours: int) -> int:
    """The smaller one; the broker's 0 leaves it to us."""
    return min(theirs or ours, ours)
