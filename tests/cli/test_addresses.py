"""Commands connect to a host whose name has several addresses."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from dispatcher.cli.rabbitmq import connected
from dispatcher.settings import RabbitSettings
from tests.conftest import Vhost
from tests.several_addresses import NAME, named, places


async def test_not_each_command_begins_with_the_same_address(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who listens at the first address hangs up."""
    tried: list[tuple[str, int]] = []
    resolve, connect = socket.getaddrinfo, socket.socket.connect

    def resolved(host: str, port: int, *given: Any, **options: Any) -> Any:
        return places(port) if host == NAME else resolve(host, port, *given, **options)

    def connects(self: socket.socket, address: tuple[str, int]) -> None:
        tried.append(address)
        connect(self, address)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    monkeypatch.setattr(socket.socket, "connect", connects)
    async with named(vhost.amqp_url) as url:
        at = RabbitSettings(url=url).address.port
        begun_with = set[str]()
        for _ in range(40):
            begun_with.add(await asyncio.to_thread(_first, url, at, tried))
            if len(begun_with) == 2:
                return
    pytest.fail(f"each began with {begun_with}")


def _first(url: str, port: int, tried: list[tuple[str, int]]) -> str:
    """The address that a command tries first."""
    tried.clear()
    with connected(RabbitSettings(url=url), "test") as connection:
        assert connection.is_open
    return next(address for address, to in tried if to == port)
