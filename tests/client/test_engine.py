"""The engine over a link that only records: what it does when something of ours breaks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from dispatcher.amqp.properties import user_property
from dispatcher.client import GroupConsumer
from dispatcher.client.copies import Message
from dispatcher.client.engine import ConsumerEngine
from dispatcher.client.links import Publication, Receiver
from dispatcher.client.membership import LaneMembership
from dispatcher.client.send_queue import SendQueue
from dispatcher.client.sending import ProducerEngine
from dispatcher.client.tap import TappedDelivery
from dispatcher.errors import InvalidTransition
from dispatcher.wire.protocol import LaneNames
from tests.client.copies_on_wire import copy_properties, notice_properties


class NoTimer:
    def cancel(self) -> None: ...


class ManualLoop:
    """Runs what was asked for when it is told to."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.now = 0

    def now_ms(self) -> int:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.calls.append(callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> NoTimer:
        return NoTimer()

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class RecordingLink:
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.published: list[Publication] = []
        self.opened: list[str | None] = []
        self.is_closed = False

    def open(self, exchange: str | None) -> None:
        self.opened.append(exchange)

    def publish(self, publication: Publication) -> None:
        self.published.append(publication)

    def reset(self, reason: str, code: int) -> None: ...

    def close(self) -> None:
        self.is_closed = True


class Application:
    """A listener, of which any part may break."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.breaks = False
        self.end: list[Exception | None] = []

    def received(self, messages: list[Message]) -> None:
        if self.breaks:
            raise InvalidTransition("a bug")
        self.messages += messages

    def lost(self, messages: list[Message]) -> None: ...

    def changed(self) -> None: ...

    def ended(self, error: Exception | None) -> None:
        self.end.append(error)


class Subject:
    def __init__(self, **options: Any) -> None:
        self.loop = ManualLoop()
        self.application = Application()
        uuids = count(1)
        membership: LaneMembership[Message] = LaneMembership(
            "c1", 10, make_message=self.message, new_incarnation=lambda: f"uuid-{next(uuids)}",
            offline_limit_ms=1_000, now_ms=0,
        )  # fmt: skip
        self.engine = ConsumerEngine(
            membership, LaneNames("orders"), self.loop, self.application, self.make_link, **options
        )
        self.engine.start()
        self.join(1)

    def join(self, n: int) -> None:
        self.loop.now += 1_000
        self.loop.turn()
        self.engine.opened(f"q{n}")
        self.deliver(*notice_properties("welcome", incarnation="uuid-1", n=n, heartbeat=100))

    def make_link(self, receiver: Receiver) -> RecordingLink:
        self.link = RecordingLink(receiver)
        return self.link

    def message(self, *arguments: Any) -> Message:
        return Message(*arguments, lambda *settled: self.engine.settle(*settled))

    def deliver(self, raw: bytes, body: bytes = b"") -> None:
        self.engine.delivered([TappedDelivery(b"copies-1", raw, body)])
        self.loop.turn()


def test_it_joins_and_works() -> None:
    subject = Subject()
    assert subject.engine.joined
    subject.deliver(copy_properties(5))
    assert [message.seq for message in subject.application.messages] == [5]
    assert [publication.routing_key for publication in subject.link.published] == ["control", "heartbeat"]


@pytest.mark.parametrize("user", [None, "worker"])
def test_its_words_name_its_user_where_that_is_asked_for(user: str | None) -> None:
    subject = Subject(user=user)
    assert [user_property(each.properties) for each in subject.link.published] == [user, user]


@pytest.mark.parametrize("is_strict", [False, True])
def test_the_user_is_that_of_the_url(is_strict: bool) -> None:
    consumer = GroupConsumer("amqp://w%40rker:pw@mq/", "orders", "c1", strict_identity=is_strict)
    assert consumer._identity.user == ("w@rker" if is_strict else None)


def test_settles_of_one_turn_go_in_one_message() -> None:
    subject = Subject()
    for seq in range(3):
        subject.deliver(copy_properties(10 + seq))
    for message in subject.application.messages:
        message.settle()
    assert len(subject.link.published) == 2
    subject.loop.turn()
    assert len(subject.link.published) == 3
    assert b'"acked":[[10,12]]' in subject.link.published[-1].body


def test_an_error_of_ours_ends_the_consumer_with_it() -> None:
    subject = Subject()
    subject.application.breaks = True
    subject.deliver(copy_properties(5))
    assert subject.link.is_closed
    subject.engine.closed()
    (error,) = subject.application.end
    assert isinstance(error, InvalidTransition)
    subject.application.breaks = False
    subject.deliver(copy_properties(6))
    assert not subject.application.messages


def test_a_loss_is_told_once_until_it_has_joined_again(caplog: pytest.LogCaptureFixture) -> None:
    subject = Subject()

    def told(reason: str, code: int = 0) -> list[str]:
        caplog.clear()
        subject.engine.lost(reason, code)
        return [record.message for record in caplog.records if record.levelno >= logging.WARNING]

    assert told("reset by peer") == ["consumer c1 of lane orders: reset by peer"]
    assert told("end of file") == told("shut down", 320) == told("refused") == []
    assert len(told("no such exchange", 404)) == 1, "another kind"
    assert told("refused") == told("no such exchange", 404) == []
    subject.join(2)
    assert told("refused") == ["consumer c1 of lane orders: refused"]


def test_a_producer_tells_a_loss_once_until_it_is_connected_again(caplog: pytest.LogCaptureFixture) -> None:
    links: list[RecordingLink] = []

    def make_link(receiver: Receiver) -> RecordingLink:
        links.append(RecordingLink(receiver))
        return links[0]

    engine = ProducerEngine(SendQueue(), ManualLoop(), make_link, lambda: None)
    engine.start()
    for reason in ("reset by peer", "end of file", "refused"):
        engine.lost(reason, 0)
    engine.opened("")
    engine.lost("reset by peer", 0)
    told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == ["producer: reset by peer"] * 2


def test_a_message_that_is_nothing_known_is_only_logged() -> None:
    subject = Subject()
    subject.deliver(b"\0\0")
    subject.deliver(b"\x20\0\0\0\0\x09\x01")
    subject.deliver(copy_properties(5))
    assert len(subject.application.messages) == 1
