"""A lane without a dispatcher, and every consumer and producer once asynchronous, once blocking."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.client.lane_stub import LaneStub
from tests.client.member_subject import Subject
from tests.client.subjects import (
    AsyncConsumer,
    AsyncProducer,
    BlockingConsumer,
    BlockingProducer,
    Consumer,
    MakeConsumer,
    MakeProducer,
    Producer,
)
from tests.client.tcp_proxy import TcpProxy
from tests.conftest import Vhost


@pytest.fixture
async def lane(vhost: Vhost) -> AsyncIterator[LaneStub]:
    async with LaneStub(vhost.amqp_url) as stub:
        yield stub


@pytest.fixture
async def proxy(vhost: Vhost) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(vhost.amqp_url) as running:
        yield running


@pytest.fixture(params=[AsyncConsumer, BlockingConsumer], ids=["async", "blocking"])
async def make_consumer(request: pytest.FixtureRequest, vhost: Vhost) -> AsyncIterator[MakeConsumer]:
    """`await make_consumer(url=…, prefetch=…)`: an open consumer, closed after the test."""
    made: list[Consumer] = []

    async def make(*, url: str = vhost.amqp_url, opened: bool = True, **options: Any) -> Consumer:
        made.append(request.param(url, **options))
        if opened:
            await made[-1].open()
        return made[-1]

    yield make
    for consumer in made:
        await consumer.close()


@pytest.fixture(params=[AsyncProducer, BlockingProducer], ids=["async", "blocking"])
async def make_producer(request: pytest.FixtureRequest, vhost: Vhost) -> AsyncIterator[MakeProducer]:
    made: list[Producer] = []

    async def make(*arguments: Any, url: str = vhost.amqp_url, **options: Any) -> Producer:
        made.append(request.param(url, *arguments, **options))
        await made[-1].open()
        return made[-1]

    yield make
    for producer in made:
        await producer.close()


@pytest.fixture
def subject() -> Subject:
    return Subject()


@pytest.fixture
def joined(subject: Subject) -> Subject:
    """One that was welcomed."""
    subject.join()
    return subject
