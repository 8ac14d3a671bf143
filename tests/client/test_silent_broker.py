"""A broker that accepts connections and says nothing: a consumer that gives up the attempt survives it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from tests.client.subjects import AsyncConsumer, BlockingConsumer


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


@pytest.mark.parametrize("kind", [AsyncConsumer, BlockingConsumer])
async def test_a_consumer_that_ends_in_the_middle_of_a_handshake_ends_without_an_error(
    silent: socket.socket, kind: type[AsyncConsumer | BlockingConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    """Giving up is the same at a time-out, after which the next attempt must follow."""
    consumer = kind(f"amqp://guest:guest@127.0.0.1:{silent.getsockname()[1]}/")
    await consumer.open()
    accepted, _ = await asyncio.to_thread(silent.accept)
    with accepted:
        assert (await asyncio.to_thread(accepted.recv, 8)).startswith(b"AMQP")
        await consumer.close()
        assert await consumer.next() is None
    assert not [record for record in caplog.records if record.name.startswith("dispatcher")]
