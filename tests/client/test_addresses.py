"""A host whose name has several addresses, for the links of both kinds of clients."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pika.adapters.select_connection import SelectorIOServicesAdapter

from dispatcher.client import Tls
from dispatcher.client.aio_link import AioLink
from dispatcher.client.io_thread import IoThread
from dispatcher.client.links import Endpoint
from dispatcher.client.pika_link import AnyAddress, PikaLink
from tests.amqp.certificates import Authority
from tests.conftest import Vhost
from tests.several_addresses import NAME, named, places, run
from tests.waiting import eventually


class _Resolver(SelectorIOServicesAdapter):  # type: ignore[misc]
    def getaddrinfo(self, host: str, port: int, on_done: Callable[[Any], None], **_: Any) -> Any:
        assert host == NAME
        return self.call_later(0, lambda: on_done(places(port)))


class _Services(AnyAddress, _Resolver):
    """pika's, with a resolver that knows the name."""


class NamingPikaLink(PikaLink):
    services_type = _Services


class Receiver:
    """Tries again and again."""

    def __init__(self, make_link: Callable[[Any], Any]) -> None:
        self.link = make_link(self)
        self.is_open = self.is_closed = False

    def opened(self, queue: str) -> None:
        self.is_open = True

    def lost(self, reason: str, code: int) -> None:
        self.link.open(None)

    def closed(self) -> None:
        self.is_closed = True


async def _aio_connects(endpoint: Endpoint) -> None:
    receiver = Receiver(lambda receiver: AioLink(endpoint, receiver))
    receiver.link.open(None)
    await eventually(lambda: receiver.is_open)
    receiver.link.close()
    await eventually(lambda: receiver.is_closed)


async def _pika_connects(endpoint: Endpoint) -> None:
    crashes: list[Exception] = []
    io = IoThread("test", crashes.append)
    receiver = Receiver(lambda receiver: NamingPikaLink(endpoint, receiver, io))
    io.start()
    io.submit(lambda: receiver.link.open(None))
    try:
        await eventually(lambda: receiver.is_open)
        io.submit(receiver.link.close)
        await eventually(lambda: receiver.is_closed)
    finally:
        io.submit(io.end)
        io.join(10)
    assert not crashes


kinds = pytest.mark.parametrize("connects", [_aio_connects, _pika_connects], ids=["async", "blocking"])


@kinds
def test_not_each_attempt_begins_with_the_same_address(vhost: Vhost, connects: Any) -> None:
    async def connect() -> None:
        async with named(vhost.amqp_url) as url:
            await connects(Endpoint.of(url, None, "test"))

    run(connect())


@kinds
def test_the_certificate_is_for_the_name_whichever_address_is_taken(
    vhost: Vhost, tmp_path: Path, connects: Any
) -> None:
    authority = Authority(tmp_path).create()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign(NAME))

    async def connect() -> None:
        async with named(vhost.amqp_url, context) as url:
            await connects(Endpoint.of(url, Tls(ca_file=authority.file), "test"))

    run(connect())
