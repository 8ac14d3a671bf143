"""Time of a connection: both sides must be heard, and nothing but numbers says what time it is."""

from __future__ import annotations

from typing import Any

from dispatcher.amqp.connection import Connection
from dispatcher.amqp.events import ConnectionClosed
from tests.amqp.samples import deliver, login, opened, sent_methods


def test_no_timer_before_the_handshake_is_through() -> None:
    connection = Connection(login(), 0)
    assert connection.next_deadline_ms() is None
    assert connection.handle_timer(10**9) == []


def test_a_heartbeat_goes_out_after_half_an_interval_of_silence() -> None:
    connection = opened(heartbeat_s=10)
    assert connection.next_deadline_ms() == 5_000
    assert connection.handle_timer(4_999) == []
    assert not connection.has_output
    assert connection.handle_timer(5_000) == []
    assert sent_methods(connection.data_to_send(5_000)) == [(0, "Heartbeat", {})]
    assert connection.next_deadline_ms() == 10_000


def test_whatever_is_sent_counts_as_a_heartbeat() -> None:
    connection = opened(heartbeat_s=10)
    connection.ack(1, 1)
    connection.data_to_send(3_000)
    assert connection.next_deadline_ms() == 8_000
    assert connection.handle_timer(5_000) == []
    assert not connection.has_output


def _tick(connection: Connection, now_ms: int) -> list[Any]:
    events = connection.handle_timer(now_ms)
    connection.data_to_send(now_ms)
    return events


def test_a_peer_silent_for_two_intervals_is_gone() -> None:
    connection = opened(heartbeat_s=10)
    assert [_tick(connection, now_ms) for now_ms in (5_000, 10_000, 15_000)] == [[], [], []]
    assert connection.next_deadline_ms() == 20_000
    assert _tick(connection, 20_000) == [ConnectionClosed(0, "the broker was silent for 2 heartbeats")]


def test_whatever_is_received_counts_as_a_heartbeat() -> None:
    connection = opened(heartbeat_s=10)
    connection.receive_data(deliver(1), 9_000)
    connection.receive_data(b"\x08", 12_000)  # even the beginning of a frame
    for now_ms in (5_000, 10_000, 15_000, 20_000, 25_000, 30_000):
        assert _tick(connection, now_ms) == []
    assert _tick(connection, 32_000) != []


def test_a_process_that_slept_itself_listens_for_one_more_interval() -> None:
    connection = opened(heartbeat_s=10)
    assert _tick(connection, 60_000) == []
    assert connection.next_deadline_ms() == 65_000
    assert _tick(connection, 65_000) == []
    assert _tick(connection, 70_000) != []
