"""amqps:// with an authority of one's own, for consumers and producers of both kinds."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dispatcher.client import Tls
from dispatcher.errors import ConfigurationError
from tests.amqp.certificates import Authority
from tests.client.lane_stub import LaneStub
from tests.client.subjects import MakeConsumer, MakeProducer
from tests.client.tcp_proxy import TcpProxy
from tests.conftest import Vhost


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path).create()


@pytest.fixture
async def tls_proxy(vhost: Vhost, authority: Authority) -> AsyncIterator[TcpProxy]:
    """A broker behind TLS: its certificate is for the name `rabbit`, and it wants one of the client's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("rabbit"))
    context.load_verify_locations(authority.file)
    context.verify_mode = ssl.CERT_REQUIRED
    async with TcpProxy(vhost.amqp_url, tls=context) as proxy:
        yield proxy


def trusting(authority: Authority, server_name: str = "rabbit") -> Tls:
    certificate, key = authority.sign("client")
    return Tls(ca_file=authority.file, cert_file=certificate, key_file=key, server_name=server_name)


async def test_a_consumer_works_over_tls(
    lane: LaneStub, tls_proxy: TcpProxy, authority: Authority, make_consumer: MakeConsumer
) -> None:
    consumer = await make_consumer(url=tls_proxy.url, tls=trusting(authority))
    me = await lane.present()
    body = bytes(300_000)
    await lane.send(me, body, b"g")
    assert (await consumer.next()).body == body


async def test_a_producer_works_over_tls(
    lane: LaneStub, tls_proxy: TcpProxy, authority: Authority, make_producer: MakeProducer
) -> None:
    producer = await make_producer(lane.names.heartbeat, url=tls_proxy.url, tls=trusting(authority))
    await producer.send(b"{}", "g")


@pytest.mark.parametrize("server_name", [None, "another"])
async def test_a_certificate_for_another_name_is_refused(
    tls_proxy: TcpProxy, authority: Authority, make_consumer: MakeConsumer, server_name: str
) -> None:
    consumer = await make_consumer(url=tls_proxy.url, tls=trusting(authority, server_name))
    with pytest.raises(ConfigurationError, match="certificate verify failed"):
        await consumer.joined()


async def test_an_unknown_authority_is_refused(tls_proxy: TcpProxy, make_consumer: MakeConsumer) -> None:
    consumer = await make_consumer(url=tls_proxy.url)
    with pytest.raises(ConfigurationError, match="certificate verify failed"):
        await consumer.joined()


async def test_files_that_are_not_there_are_named(vhost: Vhost, make_consumer: MakeConsumer) -> None:
    with pytest.raises(ConfigurationError, match=r"tls: the certificates can't be loaded: .*No such file"):
        await make_consumer(url="amqps://localhost", tls=Tls(ca_file="/missing.pem"), opened=False)
    with pytest.raises(ConfigurationError, match="tls: is given, so the url must begin with amqps"):
        await make_consumer(url="amqp://localhost", tls=Tls(), opened=False)
