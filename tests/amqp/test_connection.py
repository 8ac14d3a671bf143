"""The protocol without I/O: the broker's side is played by frames from pamqp, time by plain numbers."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands
from pamqp.commands import Basic, Channel, Confirm, Connection, Queue

from dispatcher.amqp.connection import Connection as OurConnection
from dispatcher.amqp.connection import ConnectionState
from dispatcher.amqp.events import (
    Blocked,
    ChannelClosed,
    Confirmed,
    ConnectionClosed,
    ConsumerCancelled,
    Unblocked,
)
from dispatcher.errors import BrokerUnavailable, ChannelRefused, ProtocolViolation
from tests.amqp import samples
from tests.amqp.samples import (
    channel_open,
    deliver,
    feed,
    handshake,
    login,
    method,
    opened,
    raw_frame,
    replies,
    sent,
    sent_methods,
)

# --- handshake ------------------------------------------------------------------------------------------


def test_handshake_with_plain() -> None:
    connection = OurConnection(login(), 0)
    assert connection.data_to_send(0) == b"AMQP\x00\x00\x09\x01"
    assert feed(connection, samples.start()) == []
    ((channel, name, start_ok),) = sent(connection)
    assert (channel, name) == (0, "Connection.StartOk")
    assert (start_ok["mechanism"], start_ok["response"]) == ("PLAIN", "\0guest\0pässword")
    properties: Any = start_ok["client_properties"]
    assert properties["connection_name"] == "orders"
    assert properties["capabilities"] == {
        "publisher_confirms": True, "basic.nack": True, "authentication_failure_close": True,
        "connection.blocked": True, "consumer_cancel_notify": True, "exchange_exchange_bindings": True,
    }  # fmt: skip
    feed(connection, method(0, Connection.Tune(2_047, 131_072, 60)))
    assert sent(connection) == [
        (0, "Connection.TuneOk", {"channel_max": 2_047, "frame_max": 131_072, "heartbeat": 10}),
        (0, "Connection.Open", {"virtual_host": "a/b", "capabilities": "", "insist": False}),
    ]
    assert connection.state is ConnectionState.HANDSHAKE
    feed(connection, method(0, Connection.OpenOk()))
    assert connection.state is ConnectionState.OPEN
    assert connection.handshake.server_properties["version"] == "3.10.8"


def test_handshake_with_a_client_certificate() -> None:
    connection = OurConnection(login(user=None), 0)
    connection.data_to_send(0)
    feed(connection, samples.start("PLAIN EXTERNAL"))
    ((_, _, start_ok),) = sent(connection)
    assert (start_ok["mechanism"], start_ok["response"]) == ("EXTERNAL", "")


@pytest.mark.parametrize(
    ("user", "offered", "text"),
    [
        ("guest", "EXTERNAL", "offers EXTERNAL, not PLAIN: use a client certificate"),
        (None, "PLAIN AMQPLAIN", "offers PLAIN AMQPLAIN, not EXTERNAL: name a user in the URL"),
    ],
)
def test_a_mechanism_that_is_not_offered_is_named(user: str | None, offered: str, text: str) -> None:
    with pytest.raises(ProtocolViolation, match=text):
        feed(OurConnection(login(user=user), 0), samples.start(offered))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ((0, 0, 0), (2_047, 131_072, 10)),
        ((10, 8_192, 5), (10, 8_192, 5)),
        ((65_535, 2**31, 600), (2_047, 131_072, 10)),
    ],
)
def test_the_smaller_limits_are_agreed(theirs: tuple[int, int, int], ours: tuple[int, int, int]) -> None:
    connection = OurConnection(login(), 0)
    tune = Connection.Tune(*theirs)
    feed(connection, samples.start(), method(0, tune))
    ((_, _, tune_ok),) = [
        found for found in sent_methods(connection.data_to_send(0)[8:]) if "Tune" in found[1]
    ]
    assert tuple(tune_ok.values()) == ours
    assert connection.frame_max == ours[1]


def test_frames_below_amqps_minimum_are_refused() -> None:
    with pytest.raises(ProtocolViolation, match="frames of 1024 bytes"):
        feed(OurConnection(login(), 0), handshake(frame_max=1_024))


@pytest.mark.parametrize(
    "frames",
    [
        [method(0, Connection.Tune(0, 0, 0))], [samples.start(), samples.start()],
        [method(0, Connection.OpenOk())], [samples.start(), method(0, Connection.Secure("x"))], [deliver(1)],
        [method(0, Connection.CloseOk())], [channel_open()], [raw_frame(1, 0, b"\x00\x0a\x00\x3c\x01x")],
    ],
)  # fmt: skip
def test_anything_else_in_the_handshake_is_a_violation(frames: list[bytes]) -> None:
    connection = OurConnection(login(), 0)
    with pytest.raises(ProtocolViolation):
        feed(connection, *frames)
    assert connection.is_over()
    assert feed(connection, handshake()) == []


def test_a_refused_login_is_an_end_with_its_code() -> None:
    connection = OurConnection(login(), 0)
    events = feed(connection, samples.start(), method(0, Connection.Close(403, "ACCESS_REFUSED - no", 0, 0)))
    assert events == [ConnectionClosed(403, "ACCESS_REFUSED - no")]


def test_the_end_names_the_method_at_which_the_broker_failed() -> None:
    close = method(0, Connection.Close(541, "INTERNAL_ERROR - not formed", 50, 10))
    events = feed(OurConnection(login(), 0), samples.start(), close)
    assert events == [ConnectionClosed(541, "INTERNAL_ERROR - not formed", 50, 10)]


# --- what the broker does by itself ---------------------------------------------------------------------


def test_a_closed_channel_fails_its_requests_and_leaves_the_others_alone() -> None:
    connection = opened(channels=2)
    connection.request(1, Queue.Declare(queue="a", passive=True), "a")
    connection.request(1, Queue.Declare(queue="b", passive=True), "b")
    connection.request(2, Queue.Declare(queue="c"), "c")
    connection.data_to_send(0)
    closing = method(1, Channel.Close(404, "NOT_FOUND - no queue 'a'", 50, 10))
    events = feed(connection, closing, deliver(1, channel=2))
    assert events[0] == ChannelClosed(1, 404, "NOT_FOUND - no queue 'a'", 50, 10)
    assert events[1].channel == 2
    assert sent(connection) == [(1, "Channel.CloseOk", {})]
    (a, b) = replies(connection)
    for token, problem in (a, b):
        assert isinstance(problem, ChannelRefused)
        assert (token in "ab", problem.code, problem.text) == (True, 404, "NOT_FOUND - no queue 'a'")
    feed(connection, method(2, Queue.DeclareOk("c", 0, 0)))
    assert replies(connection)[0][0] == "c"
    for use in (
        lambda: connection.write(1, b"", 1), lambda: connection.ack(1, 1),
        lambda: connection.request(1, Confirm.Select(), "x"), lambda: connection.send(1, Basic.Nack(1)),
    ):  # fmt: skip
        with pytest.raises(ChannelRefused, match="404 NOT_FOUND - no queue 'a'"):
            use()


def test_texts_of_the_broker_need_not_be_utf_8() -> None:
    connection = opened()
    payload = b"\x00\x14\x00\x28\x01\x94\x02\xff'\x00\x32\x00\x0a"
    assert feed(connection, raw_frame(1, 1, payload)) == [ChannelClosed(1, 404, "\ufffd'", 50, 10)]


def test_a_cancelled_consumer() -> None:
    connection = opened()
    assert feed(connection, method(1, Basic.Cancel("in", True))) == [ConsumerCancelled(1, b"in")]
    assert sent(connection) == []
    assert feed(connection, method(1, Basic.Cancel("in", False))) == [ConsumerCancelled(1, b"in")]
    assert sent(connection) == [(1, "Basic.CancelOk", {"consumer_tag": "in"})]


def test_blocked_and_unblocked() -> None:
    connection = opened()
    assert connection.blocked is None
    assert feed(connection, method(0, Connection.Blocked("low on memory"))) == [Blocked("low on memory")]
    assert connection.blocked == "low on memory"
    assert feed(connection, method(0, Connection.Unblocked())) == [Unblocked()]
    assert connection.blocked is None


def test_nothing_is_reported_after_the_end() -> None:
    connection = opened()
    connection.request(1, Queue.Declare(queue="q"), "token")
    connection.data_to_send(0)
    close = method(0, Connection.Close(320, "CONNECTION_FORCED - shutdown", 0, 0))
    events = feed(connection, deliver(1), close, deliver(2), method(1, Queue.DeclareOk("q", 0, 0)))
    assert [type(event).__name__ for event in events] == ["Delivery", "ConnectionClosed"]
    assert events[1] == ConnectionClosed(320, "CONNECTION_FORCED - shutdown")
    assert sent(connection) == [(0, "Connection.CloseOk", {})]
    ((token, problem),) = replies(connection)
    assert token == "token"
    assert str(problem) == "320 CONNECTION_FORCED - shutdown"
    assert feed(connection, deliver(3)) == []
    assert connection.receive_eof("lost") == []
    assert connection.handle_timer(10**9) == []
    assert connection.next_deadline_ms() is None
    for use in (lambda: connection.write(1, b"", 1), lambda: connection.open_channel("x")):
        with pytest.raises(BrokerUnavailable, match="320 CONNECTION_FORCED"):
            use()


def test_a_lost_connection() -> None:
    connection = opened()
    connection.request(1, Queue.Declare(queue="q"), "token")
    assert connection.receive_eof("reset by peer") == [ConnectionClosed(0, "reset by peer")]
    assert [str(problem) for _, problem in replies(connection)] == ["reset by peer"]
    assert connection.receive_eof("again") == []


def test_our_own_close_waits_for_the_answer_and_reports_nothing_else() -> None:
    connection = opened()
    connection.request(1, Queue.Declare(queue="q"), "token")
    connection.write(1, method(1, Basic.Publish(routing_key="q")), 1)
    connection.close()
    connection.close()
    assert [name for _, name, _ in sent(connection)] == ["Queue.Declare", "Basic.Publish", "Connection.Close"]
    assert [type(problem) for _, problem in replies(connection)] == [BrokerUnavailable]
    with pytest.raises(BrokerUnavailable, match="closed by us"):
        connection.write(1, b"", 1)
    assert feed(connection, deliver(1), method(1, Basic.Ack(1)), method(1, Queue.DeclareOk("q", 0, 0))) == []
    assert feed(connection, method(0, Connection.CloseOk()), deliver(2)) == [
        ConnectionClosed(200, "the connection was closed by us")
    ]


def test_a_violation_ends_the_connection_and_the_broker_is_told() -> None:
    connection = opened()
    connection.request(1, Queue.Declare(queue="q"), "token")
    connection.data_to_send(0)
    with pytest.raises(ProtocolViolation, match="end mark"):
        feed(connection, deliver(1)[:-1] + b"\x00")
    assert connection.is_over()
    ((_, name, close),) = sent(connection)
    assert (name, close["reply_code"]) == ("Connection.Close", 501)
    assert [type(problem) for _, problem in replies(connection)] == [BrokerUnavailable]
    assert feed(connection, deliver(1)) == []


def test_confirms_and_deliveries_keep_their_order() -> None:
    connection = opened()
    events = feed(connection, deliver(1), method(1, Basic.Ack(1, True)), deliver(2))
    assert [type(event).__name__ for event in events] == ["Delivery", "Confirmed", "Delivery"]
    assert events[1] == Confirmed(1, 1, True, False)


def test_pamqp_methods_are_all_known() -> None:
    # An index that pamqp doesn't know is a violation and no KeyError.
    unknown = next(n for n in range(0x3C0001, 0x3D0000) if n not in commands.INDEX_MAPPING)
    with pytest.raises(ProtocolViolation, match="unknown method"):
        feed(opened(), raw_frame(1, 1, unknown.to_bytes(4)))
