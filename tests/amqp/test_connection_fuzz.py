"""No bytes of a broker make a connection hang or fail with anything but a ProtocolViolation."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from dispatcher.amqp.connection import Connection
from dispatcher.amqp.events import ConnectionClosed
from dispatcher.errors import ProtocolViolation
from tests.amqp.samples import EVERY_TYPE, cut, deliver, handshake, login, long, method, opened, raw_frame

_places = st.lists(st.integers(0, 2**20), max_size=10)
_table = st.lists(st.sampled_from(list(EVERY_TYPE.values()))).map(lambda fields: long(b"".join(fields)))
_arguments = st.lists(
    st.binary(max_size=12)
    | st.integers(0, 9).map(bytes)
    | _table
    | st.just(b"\x02in")
    | st.just(b"\x08" + b"x" * 8),
    max_size=5,
).map(b"".join)
_methods = st.builds(
    lambda index, channel, arguments: raw_frame(1, channel, index.to_bytes(4) + arguments),
    st.sampled_from(list(commands.INDEX_MAPPING)) | st.integers(0, 2**32 - 1), st.integers(0, 3), _arguments,
)  # fmt: skip
_frames = _methods | st.just(deliver(1)) | st.builds(
    raw_frame, st.sampled_from([1, 2, 3, 8, 0, 255]), st.integers(0, 3), st.binary(max_size=40)
)  # fmt: skip


def _feed(connection: Connection, pieces: list[bytes]) -> None:
    """Everything in; after the end nothing more may be said, and nothing raised."""
    ended = False
    for piece in pieces:
        try:
            events = connection.receive_data(piece, 0)
        except ProtocolViolation:
            assert not ended
            assert connection.is_over()
            ended = True
            continue
        assert not (ended and events)
        ended = ended or any(isinstance(event, ConnectionClosed) for event in events)
        assert ended == connection.is_over()
        assert not [event for event in events[:-1] if isinstance(event, ConnectionClosed)]
    connection.data_to_send(0)


def _asked(closing: bool = False) -> Connection:
    connection = opened(channels=2)
    connection.request(1, commands.Queue.Declare(queue="q"), "declare")
    connection.request(1, commands.Basic.Get(queue="q"), "get")
    connection.request(2, commands.Basic.Consume(queue="q"), "consume")
    connection.open_channel("third")
    if closing:
        connection.request(2, commands.Channel.Close(200, "", 0, 0), "close")
    return connection


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=5))
def test_any_bytes_in_the_handshake(pieces: list[bytes]) -> None:
    _feed(Connection(login(), 0), pieces)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=5))
def test_any_bytes_on_an_open_connection(pieces: list[bytes]) -> None:
    _feed(_asked(), pieces)


@settings(deadline=None, max_examples=400)
@given(st.lists(_frames, max_size=6).map(b"".join), _places, st.booleans())
def test_any_frames_on_an_open_connection(data: bytes, places: list[int], closing: bool) -> None:
    _feed(_asked(closing), cut(data, places))


@settings(deadline=None, max_examples=400)
@given(st.lists(_frames, max_size=6).map(b"".join), _places)
def test_any_frames_while_closing(data: bytes, places: list[int]) -> None:
    connection = _asked()
    connection.close()
    _feed(connection, cut(data, places))


_mutations = st.lists(
    st.tuples(st.integers(0, 2**20), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=3
)


@settings(deadline=None, max_examples=400)
@given(_mutations, _places)
def test_a_damaged_handshake(mutations: list[tuple[int, int, bytes]], places: list[int]) -> None:
    data = handshake() + method(1, commands.Channel.OpenOk()) + deliver(1)
    for place, removed, inserted in mutations:
        at = place % (len(data) + 1)
        data = data[:at] + inserted + data[at + removed :]
    _feed(Connection(login(), 0), cut(data, places))


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(list(commands.INDEX_MAPPING)), _table)
def test_tables_of_every_type_in_cold_methods(index: int, table: bytes) -> None:
    start = b"\x00\x0a\x00\x0a\x00\x09" + table + long(b"PLAIN") + long(b"en_US")
    with contextlib.suppress(ProtocolViolation):
        Connection(login(), 0).receive_data(raw_frame(1, 0, start), 0)
    _feed(_asked(), [raw_frame(1, 1, index.to_bytes(4) + table)])
