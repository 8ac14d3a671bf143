"""Channels and the requests on them: numbers, order of answers, and both ways to close."""

from __future__ import annotations

import pytest
from pamqp import base
from pamqp.commands import Basic, Channel, Confirm, Queue

from dispatcher.amqp.events import (
    ChannelClosed,
    Fetched,
)
from dispatcher.errors import BrokerUnavailable, ChannelRefused, ProtocolViolation
from tests.amqp import samples
from tests.amqp.samples import (
    channel_open,
    deliver,
    feed,
    method,
    opened,
    replies,
    sent,
)


def test_channels_are_numbered_from_one_and_reused() -> None:
    connection = opened(channels=0, channel_max=2)
    assert [connection.open_channel("a"), connection.open_channel("b")] == [1, 2]
    assert [name for _, name, _ in sent(connection)] == ["Channel.Open", "Channel.Open"]
    with pytest.raises(BrokerUnavailable, match="all 2 channels"):
        connection.open_channel("c")
    feed(connection, channel_open(1), channel_open(2))
    assert [token for token, _ in replies(connection)] == ["a", "b"]
    feed(connection, method(1, Channel.Close(404, "NOT_FOUND", 50, 10)))
    assert connection.open_channel("d") == 1


def test_a_channel_can_be_used_only_once_it_is_open() -> None:
    connection = opened(channels=0)
    connection.open_channel("a")
    with pytest.raises(ChannelRefused, match="channel 1 is not open"):
        connection.write(1, b"", 1)
    with pytest.raises(ProtocolViolation, match="channel 1, which is not open"):
        feed(connection, deliver(1))


def test_answers_come_in_the_order_of_the_requests() -> None:
    connection = opened(channels=2)
    connection.request(1, Queue.Declare(queue="a"), "first")
    connection.request(2, Queue.Declare(queue="b"), "other channel")
    connection.request(1, Basic.Consume(queue="a", consumer_tag="c"), "second")
    connection.request(1, Basic.Get(queue="a"), "third")
    connection.request(1, Basic.Get(queue="a"), "fourth")
    feed(
        connection, method(2, Queue.DeclareOk("b", 1, 0)), method(1, Queue.DeclareOk("a", 5, 0)),
        method(1, Basic.ConsumeOk("c")), method(1, Basic.GetOk(9, False, "e", "a", 4)),
        samples.content(1, b"\0\0", b"got"), method(1, Basic.GetEmpty()),
    )  # fmt: skip
    (other, first, second, third, fourth) = replies(connection)
    assert [token for token, _ in (other, first, second, third, fourth)] == [
        "other channel", "first", "second", "third", "fourth",
    ]  # fmt: skip
    assert (first[1].message_count, second[1].consumer_tag) == (5, "c")
    assert third[1] == Fetched(9, False, b"e", b"a", 4, b"\0\0", b"got")
    assert isinstance(fourth[1], Basic.GetEmpty)


@pytest.mark.parametrize(
    "answer",
    [
        Queue.DeclareOk("a", 0, 0),
        Channel.OpenOk(),
        Channel.CloseOk(),
        Basic.CancelOk("c"),
        Channel.Flow(True),
    ],
)
def test_an_answer_nobody_asked_for_is_a_violation(answer: base.Frame) -> None:
    for asked in (False, True):
        connection = opened()
        if asked:
            connection.request(1, Confirm.Select(), "token")
        with pytest.raises(ProtocolViolation, match="without being asked"):
            feed(connection, method(1, answer))


def test_a_message_nobody_asked_for_is_a_violation() -> None:
    connection = opened()
    with pytest.raises(ProtocolViolation, match=r"Basic.GetOk without being asked"):
        feed(connection, method(1, Basic.GetOk(1, False, "", "q", 0)), samples.content(1, b"\0\0", b""))


@pytest.mark.parametrize("request_", [Basic.Ack(1), Queue.Declare(queue="q", nowait=True), Basic.Nack(1)])
def test_a_request_without_an_answer_is_refused(request_: base.Frame) -> None:
    with pytest.raises(ValueError, match="has no answer to wait for"):
        opened().request(1, request_, "token")


def test_confirm_tags_count_from_confirm_select() -> None:
    connection = opened(channels=2)
    assert connection.write(1, b"", 3) == 3
    connection.request(1, Confirm.Select(), "token")
    assert [connection.write(1, b"", 1), connection.write(1, b"", 5)] == [1, 6]
    assert connection.write(2, b"", 1) == 1


def test_what_is_written_leaves_in_one_piece_in_its_order() -> None:
    connection = opened()
    connection.ack(1, 5, multiple=True)
    connection.write(1, method(1, Basic.Publish(routing_key="q")), 1)
    connection.send(1, Basic.Nack(7, False, True))
    connection.request(1, Queue.Declare(queue="q", passive=True), "token")
    assert connection.has_output
    names = [(name, arguments.get("delivery_tag")) for _, name, arguments in sent(connection)]
    assert names == [("Basic.Ack", 5), ("Basic.Publish", None), ("Basic.Nack", 7), ("Queue.Declare", None)]
    assert not connection.has_output
    assert connection.data_to_send(0) == b""


CLOSE = Channel.Close(200, "done", 0, 0)


def test_what_comes_behind_a_channel_close_is_ignored_until_the_number_is_open_again() -> None:
    """Seen of RabbitMQ 3.10 when its consumer_timeout closes a channel that has deliveries under way."""
    connection = opened(channels=2)
    late = [deliver(1), method(1, Basic.Ack(1)), deliver(1, body=b"x" * 200_000)]
    events = feed(
        connection, method(1, Channel.Close(406, "PRECONDITION_FAILED", 0, 0)), *late, deliver(2, channel=2)
    )
    assert [type(event).__name__ for event in events] == ["ChannelClosed", "Delivery"]
    assert connection.open_channel("again") == 1
    assert feed(connection, *late) == []
    events = feed(connection, channel_open(1), deliver(1))
    assert [type(event).__name__ for event in events] == ["Delivery"]


def test_our_own_channel_close() -> None:
    connection = opened(channels=2)
    connection.request(1, Queue.Declare(queue="q"), "declare")
    connection.request(1, Basic.Get(queue="q"), "get")
    connection.request(1, CLOSE, "close")
    assert [name for _, name, _ in sent(connection)] == ["Queue.Declare", "Basic.Get", "Channel.Close"]
    with pytest.raises(ChannelRefused, match="the channel was closed by us"):
        connection.write(1, b"", 1)
    assert connection.open_channel("third") == 3  # 1 is not free before the answer
    ignored = deliver(1) + method(1, Basic.Ack(1)) + samples.returned() + deliver(2, b"")
    got = method(1, Basic.GetOk(9, False, "e", "q", 4)) + samples.content(1, b"\0\0", b"got")
    answers = method(1, Queue.DeclareOk("q", 0, 0)) + got + ignored + method(1, Channel.CloseOk())
    assert feed(connection, ignored, answers, deliver(7, channel=2)) == feed(opened(2), deliver(7, channel=2))
    assert [token for token, _ in replies(connection)] == ["declare", "get", "close"]
    assert connection.open_channel("again") == 1
    feed(connection, channel_open(3), channel_open(1), deliver(1))
    with pytest.raises(ProtocolViolation):
        feed(connection, method(1, Channel.CloseOk()))


def test_our_own_channel_close_in_the_middle_of_a_message() -> None:
    connection, message = opened(), deliver(1, b"x" * 1_000)
    assert feed(connection, message[:-500]) == []
    connection.request(1, CLOSE, "close")
    assert feed(connection, message[-500:], method(1, Channel.CloseOk())) == []
    assert [token for token, _ in replies(connection)] == ["close"]


@pytest.mark.parametrize("is_answered", [True, False])
def test_both_sides_close_a_channel_at_once(is_answered: bool) -> None:
    """RabbitMQ answers our close or loses it; the number is free at once."""
    connection = opened()
    connection.request(1, Queue.Declare(queue="q", passive=True), "declare")
    connection.request(1, CLOSE, "close")
    connection.data_to_send(0)
    assert feed(connection, method(1, Channel.Close(404, "NOT_FOUND", 50, 10))) == [
        ChannelClosed(1, 404, "NOT_FOUND", 50, 10)
    ]
    assert sent(connection) == [(1, "Channel.CloseOk", {})]
    (declare, close) = replies(connection)
    assert (declare[0], declare[1].code) == ("declare", 404)
    assert (close[0], type(close[1])) == ("close", Channel.CloseOk)
    assert connection.open_channel("next") == 1
    feed(connection, *([method(1, Channel.CloseOk())] if is_answered else []), channel_open(1))
    assert [token for token, _ in replies(connection)] == ["next"]
