"""The methods that are rare: pamqp writes and reads them, the few with foreign text in them are read here."""

from __future__ import annotations

from struct import Struct, error
from typing import Final

from pamqp import base, commands, frame
from pamqp.exceptions import PAMQPException

from dispatcher.amqp.decoder import read_short
from dispatcher.errors import ProtocolViolation

_read_u16: Final = Struct(">H").unpack_from
_read_two_u16: Final = Struct(">HH").unpack_from


class QueueDeclare(commands.Queue.Declare):
    """queue.declare for any queue name: pamqp's own refuses some that RabbitMQ accepts."""

    def validate(self) -> None:
        """RabbitMQ judges the name."""


class BasicConsume(commands.Basic.Consume):
    """basic.consume for any queue name: pamqp's own refuses some that RabbitMQ accepts."""

    def validate(self) -> None:
        """RabbitMQ judges the name."""


class BasicGet(commands.Basic.Get):
    """basic.get from a queue of any name."""

    def validate(self) -> None:
        """RabbitMQ judges the name."""


class QueueBind(commands.Queue.Bind):
    """queue.bind for any names."""

    def validate(self) -> None:
        """RabbitMQ judges the names."""


class QueueUnbind(commands.Queue.Unbind):
    """queue.unbind for any names."""

    def validate(self) -> None:
        """RabbitMQ judges the names."""


class ExchangeDeclare(commands.Exchange.Declare):
    """exchange.declare for any name."""

    def validate(self) -> None:
        """RabbitMQ judges the name."""


class ExchangeBind(commands.Exchange.Bind):
    """exchange.bind for any names."""

    def validate(self) -> None:
        """RabbitMQ judges the names."""


class ExchangeDelete(commands.Exchange.Delete):
    """exchange.delete for any name."""

    def validate(self) -> None:
        """RabbitMQ judges the name."""


def encode_method(channel: int, method: base.Frame) -> bytes:
    """The method frame. Raises ValueError or TypeError for arguments that AMQP can't say."""
    return frame.marshal(method, channel)


def decode_method(index: int, arguments: bytes) -> base.Frame:
    """Raises ProtocolViolation, whatever pamqp stumbles over."""
    kind = commands.INDEX_MAPPING.get(index)
    if kind is None:
        raise ProtocolViolation(f"the broker sent an unknown method ({index >> 16}, {index & 0xFFFF})")
    # Not kind(): some constructors warn of deprecation, and `unmarshal` sets every attribute.
    method: base.Frame = object.__new__(kind)
    try:
        method.unmarshal(arguments)
    except (
        PAMQPException,
        ValueError,
        TypeError,
        ArithmeticError,
        LookupError,
        OSError,
        RecursionError,
        error,
    ):
        raise ProtocolViolation(f"the broker sent a malformed {method.name}") from None
    return method


def decode_close(arguments: bytes) -> tuple[int, str, int, int]:
    """Code, text, class and method of channel.close or connection.close. Raises ProtocolViolation."""
    try:
        (code,) = _read_u16(arguments)
        text, at = read_short(arguments, 2)
        class_id, method_id = _read_two_u16(arguments, at)
    except (error, IndexError):
        raise ProtocolViolation("the broker sent a malformed close") from None
    # Such texts quote names of queues, which need not be UTF-8.
    return code, text.decode(errors="replace"), class_id, method_id


def decode_first_string(arguments: bytes) -> tuple[bytes, int]:
    """The short string that a method begins with, and where it ends. Raises ProtocolViolation."""
    try:
        return read_short(arguments, 0)
    except IndexError:
        raise ProtocolViolation("the broker sent a malformed method") from None
