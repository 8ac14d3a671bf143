"""Commands connect to a host whose name has several addresses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from dispatcher.cli.rabbitmq import connected
from dispatcher.errors import BrokerUnavailable
from dispatcher.settings import RabbitSettings
from tests.client.tcp_proxy import TcpProxy
from tests.conftest import Vhost
from tests.several_addresses import NAME, places

#: More than chance needs.
COMMANDS_MAX = 40


@contextlib.contextmanager
def a_resolver_that_knows_the_name() -> Iterator[None]:
    resolve = socket.getaddrinfo

    def resolved(host: str, port: int, *given: Any, **options: Any) -> Any:
        return places(port) if host == NAME else resolve(host, port, *given, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", resolved)
        yield


def _command(url: str) -> None:
    with connected(RabbitSettings(url=url), "test") as connection:
        assert connection.is_open


async def test_an_address_that_hangs_up_is_tried_once() -> None:
    """Each try may take five seconds."""
    tries: list[asyncio.StreamWriter] = []

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(writer)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BrokerUnavailable):
            await asyncio.to_thread(_command, f"amqp://127.0.0.1:{port}/")
    assert len(tries) == 1


def test_a_host_that_is_no_name_is_told() -> None:
    with pytest.raises(BrokerUnavailable, match=r"RabbitMQ at a\.\.b:5672"):
        _command("amqp://a..b:5672/")


async def test_not_each_command_begins_with_the_same_address(vhost: Vhost) -> None:
    """Who listens at the first address hangs up, and the next one is tried."""
    hung_up = 0

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal hung_up
        hung_up += 1
        writer.close()

    seen = set[int]()
    async with TcpProxy(vhost.amqp_url) as proxy:
        port = RabbitSettings(url=proxy.url).address.port
        (*_, (first, _)), (*_, (second, _)) = places(port)
        url = proxy.url.replace(second, NAME)
        async with await asyncio.start_server(hang_up, first, port):
            with a_resolver_that_knows_the_name():
                for _ in range(COMMANDS_MAX):
                    before = hung_up
                    await asyncio.to_thread(_command, url)
                    seen.add(hung_up - before)
                    if seen == {0, 1}:
                        return
    pytest.fail(f"each command met so many that hung up: {seen}")
