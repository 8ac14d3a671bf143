"""A producer of AMQP 1.0, as much of it as sending takes: one connection, one session, one link.

By hand because the library that is kept for it has to be compiled where there is no wheel.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, NamedTuple, Self

TIMEOUT_S = 30
FRAME_MAX = 65_536
_OPEN, _BEGIN, _ATTACH, _FLOW, _TRANSFER, _DISPOSITION = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15
_DETACH, _END, _CLOSE = 0x16, 0x17, 0x18
_SASL_MECHANISMS, _SASL_INIT, _SASL_OUTCOME = 0x40, 0x41, 0x44
_HEADER, _PROPERTIES, _APPLICATION_PROPERTIES, _DATA = 0x70, 0x73, 0x74, 0x75


class Symbol(str):
    """Text from a closed list."""

    __slots__ = ()


class Unsigned(NamedTuple):
    """An unsigned number of 32 bits."""

    value: int


class Described(NamedTuple):
    """A value with the code of its type."""

    code: int
    value: Any


def encode(value: Any) -> bytes:
    """A value in the encoding of AMQP 1.0: None, bool, int (64 bits), text, bytes, list, dict."""
    match value:
        case None:
            return b"\x40"
        case bool():
            return b"\x41" if value else b"\x42"
        case Unsigned():
            return b"\x70" + struct.pack(">I", value.value)
        case int():
            return b"\x81" + struct.pack(">q", value)
        case Described():
            return b"\x00\x53" + bytes((value.code,)) + encode(value.value)
        case str():
            content = value.encode()
            return _sized(b"\xa3" if isinstance(value, Symbol) else b"\xa1", content)
        case bytes():
            return _sized(b"\xa0", value)
        case dict():
            return _compound(b"\xd1", [part for pair in value.items() for part in pair])
        case list():
            return _compound(b"\xd0", value)
    raise TypeError(value)


def _sized(kind: bytes, content: bytes) -> bytes:
    if len(content) < 256:
        return kind + bytes((len(content),)) + content
    return bytes((kind[0] | 0x10,)) + struct.pack(">I", len(content)) + content


def _compound(kind: bytes, values: list[Any]) -> bytes:
    content = struct.pack(">I", len(values)) + b"".join(map(encode, values))
    return kind + struct.pack(">I", len(content)) + content


def message(
    body: bytes, *, message_id: str, group_id: str | None = None, group_sequence: int | None = None,
    application: dict[str, Any] | None = None,
) -> bytes:  # fmt: skip
    """A durable message in its sections."""
    sequence = None if group_sequence is None else Unsigned(group_sequence)
    properties = [message_id, *(None,) * 9, group_id, sequence]
    sections = [Described(_HEADER, [True]), Described(_PROPERTIES, properties)]
    if application is not None:
        sections.append(Described(_APPLICATION_PROPERTIES, application))
    return b"".join(encode(section) for section in [*sections, Described(_DATA, body)])


class Amqp1Sender:
    """Sends to one address; each `send` returns when the broker has accepted the message."""

    def __init__(self, port: int, vhost: str, address: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._sent = 0
        self._hello(3)
        self._await(_SASL_MECHANISMS)
        self._write(_SASL_INIT, [Symbol("PLAIN"), b"\0guest\0guest"], kind=1)
        self._await(_SASL_OUTCOME)
        self._hello(0)
        self._write(_OPEN, ["test", f"vhost:{vhost}", Unsigned(FRAME_MAX)])
        self._await(_OPEN)
        self._write(_BEGIN, [None, Unsigned(0), Unsigned(100), Unsigned(100)])
        self._await(_BEGIN)
        source, target = Described(0x28, []), Described(0x29, [address])
        self._write(
            _ATTACH, ["link", Unsigned(0), False, None, None, source, target, None, None, Unsigned(0)]
        )
        self._await(_FLOW)  # credit

    def send(self, content: bytes) -> None:
        tag = struct.pack(">I", self._sent)
        self._write(_TRANSFER, [Unsigned(0), Unsigned(self._sent), tag, Unsigned(0), False], content=content)
        self._sent += 1
        answer = self._await(_DISPOSITION)
        assert b"\x00\x53\x24" in answer, f"not accepted: {answer!r}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._socket:
            self._write(_CLOSE, [])
            self._await(_CLOSE)

    def _hello(self, protocol: int) -> None:
        greeting = b"AMQP" + bytes((protocol, 1, 0, 0))
        self._socket.sendall(greeting)
        assert self._read(8) == greeting

    def _write(self, code: int, fields: list[Any], *, kind: int = 0, content: bytes = b"") -> None:
        body = encode(Described(code, fields)) + content
        self._socket.sendall(struct.pack(">IBBH", len(body) + 8, 2, kind, 0) + body)

    def _await(self, code: int) -> bytes:
        """The next frame of that kind; those before it say nothing that a sender of few messages needs."""
        while True:
            size, offset = struct.unpack(">IB3x", self._read(8))
            body = self._read(size - 8)[offset * 4 - 8 :]
            if body and body[2] == code:
                return body
            assert not body or body[2] not in (_DETACH, _END, _CLOSE), f"the broker closed: {body!r}"

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            assert part, "the broker hung up"
            data += part
        return data
