"""A broker that accepts connections and says nothing: a consumer that gives up the attempt survives it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import pytest

from dispatcher.client.links import OPEN_TIMEOUT_S, Endpoint, NodesInTurn
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


@pytest.mark.parametrize("kind", [AsyncConsumer, BlockingConsumer])
async def test_of_several_nodes_one_that_says_nothing_has_less_time(
    silent: socket.socket, kind: type[AsyncConsumer | BlockingConsumer]
) -> None:
    port = silent.getsockname()[1]
    consumer = kind((f"amqp://guest:guest@127.0.0.1:{port}/", f"amqp://guest:guest@localhost:{port}/"))
    await consumer.open()
    accepted, _ = await asyncio.to_thread(silent.accept)
    with accepted:
        assert (await asyncio.to_thread(accepted.recv, 8)).startswith(b"AMQP")
        since = time.monotonic()
        assert await asyncio.to_thread(accepted.recv, 1) == b""  # it was given up
        assert time.monotonic() - since < OPEN_TIMEOUT_S - 1
    next_one, _ = await asyncio.to_thread(silent.accept)
    next_one.close()
    await consumer.close()


def test_all_nodes_have_the_whole_time_when_none_answers_soon() -> None:
    endpoint = Endpoint.of(["amqp://one", "amqp://two"], None, "test")
    nodes = NodesInTurn(endpoint)
    tries = [nodes.next() for _ in range(5)]
    assert [seconds for _, seconds in tries] == [3, 3, 10, 10, 3]
    assert [tries[0][0], tries[1][0]] == [tries[2][0], tries[3][0]]
    nodes.opened()
    assert [nodes.next()[1] for _ in range(3)] == [3, 3, 10]


def test_a_single_node_always_has_the_whole_time() -> None:
    nodes = NodesInTurn(Endpoint.of("amqp://one", None, "test"))
    assert [nodes.next()[1] for _ in range(3)] == [10, 10, 10]
