"""What a broker refuses is said in one clear line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from pamqp.commands import Queue

from dispatcher.amqp.events import ConnectionClosed
from dispatcher.amqp.link import Link, until_it_answers
from dispatcher.errors import BrokerUnavailable, ChannelRefused, ConfigurationError
from dispatcher.settings import RabbitSettings
from tests.amqp.conftest import Connect
from tests.amqp.samples import field, properties
from tests.conftest import Vhost

FOR_EVER_S = 3_600.0


async def refused(url: str, timeout_s: float = 10.0, **given: Any) -> str:
    events: list[Any] = []
    with pytest.raises(BrokerUnavailable) as caught:
        await Link.open(
            RabbitSettings(url=url, **given), name="test", on_events=events.extend, timeout_s=timeout_s
        )
    assert events == []
    return str(caught.value)


def _with(url: str, *, user: str = "guest", password: str = "guest", vhost: str | None = None) -> str:
    parts = urlsplit(url)
    place = f"{quote(user, safe='')}:{quote(password, safe='')}@{parts.hostname}:{parts.port}"
    path = parts.path if vhost is None else f"/{quote(vhost, safe='')}"
    return parts._replace(netloc=place, path=path).geturl()


async def test_wrong_password(vhost: Vhost) -> None:
    text = await refused(_with(vhost.amqp_url, password="wrong"))
    assert (
        "refused user 'guest': ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN"
        in text
    )
    assert "wrong" not in text


async def test_unknown_vhost(vhost: Vhost) -> None:
    text = await refused(_with(vhost.amqp_url, vhost="no/such"))
    assert text.endswith("refused vhost 'no/such': NOT_ALLOWED - vhost no/such not found")


@pytest.fixture
async def stranger(vhost: Vhost) -> AsyncIterator[str]:
    """A user with a password full of signs and no permission; its URL."""
    name, password = f"stranger-{vhost.name}", "p@ss/wörd:%"
    user = {"password": password, "tags": ""}
    await asyncio.to_thread(vhost.management, f"users/{name}", "PUT", user)
    yield _with(vhost.amqp_url, user=name, password=password)
    await asyncio.to_thread(vhost.management, f"users/{name}", "DELETE")


async def test_a_vhost_without_permission(stranger: str, vhost: Vhost) -> None:
    name = f"stranger-{vhost.name}"
    assert f"refused vhost '{vhost.name}': NOT_ALLOWED - access to vhost" in (text := await refused(stranger))
    assert name in text


async def test_a_missing_right_closes_the_channel_only(
    stranger: str, vhost: Vhost, connect_to: Connect
) -> None:
    rights = {"configure": "^mine$", "write": "", "read": ""}
    path = f"permissions/{vhost.name}/stranger-{vhost.name}"
    await asyncio.to_thread(vhost.management, path, "PUT", rights)
    peer = await connect_to(RabbitSettings(url=stranger))
    channel = await peer.channel()
    await peer.queue(channel, "mine")
    with pytest.raises(ChannelRefused, match=r"403 ACCESS_REFUSED - .*access to queue 'other'") as caught:
        await peer.queue(channel, "other")
    assert caught.value.code == 403
    await peer.queue(await peer.channel(), "mine")


async def test_vhosts_are_percent_decoded(vhost: Vhost, connect_to: Connect) -> None:
    name = f"{vhost.name}/ö %"
    await asyncio.to_thread(vhost.api.create_vhost, name)
    try:
        peer = await connect_to(RabbitSettings(url=_with(vhost.amqp_url, vhost=name)))
        queue = await peer.queue(await peer.channel(), "here")
        found = await asyncio.to_thread(vhost.management, f"queues/{quote(name, safe='')}/{queue}")
        assert found["vhost"] == name
    finally:
        await asyncio.to_thread(vhost.api.delete_vhost, name)


async def test_a_second_exclusive_consumer_gets_403(connect: Connect) -> None:
    first, second = await connect(), await connect()
    channel, theirs = await first.channel(), await second.channel()
    queue = await first.queue(channel, "lock", durable=True)
    await first.consume(channel, queue, exclusive=True)
    with pytest.raises(ChannelRefused, match="403 ACCESS_REFUSED") as caught:
        await second.consume(theirs, queue, exclusive=True)
    assert caught.value.code == 403


async def test_a_bad_request_of_ours_ends_the_connection_with_its_code(connect: Connect) -> None:
    peer = await connect()
    channel = await peer.channel()
    await peer.link.call(channel, Queue.Declare(queue="q", durable=True))  # the end might overtake its answer
    peer.put(channel, "q", properties=properties(field("a", "U", b"")))  # no such type
    end = await peer.link.closed
    assert isinstance(end, ConnectionClosed)
    assert end.code == 541
    assert peer.events[-1] == end


# --- peers that are no RabbitMQ -------------------------------------------------------------------------

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def listen() -> AsyncIterator[Callable[[Talk], Awaitable[int]]]:
    servers: list[asyncio.Server] = []

    async def serve(talk: Talk) -> int:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await talk(reader, writer)
            finally:
                writer.close()

        servers.append(await asyncio.start_server(answer, "127.0.0.1", 0))
        return int(servers[-1].sockets[0].getsockname()[1])

    yield serve
    for server in servers:
        server.close()
        await server.wait_closed()


@pytest.fixture
async def free_port() -> int:
    """Nobody listens there: it was bound, and closed again."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = int(server.sockets[0].getsockname()[1])
    server.close()
    await server.wait_closed()
    return port


async def test_nobody_listens(listen: Callable[[Talk], Awaitable[int]], free_port: int) -> None:
    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError

    port = await listen(nothing)
    assert port != free_port
    text = await refused(f"amqp://127.0.0.1:{free_port}/")
    assert text.startswith(f"RabbitMQ at 127.0.0.1:{free_port} can't be reached: ")


async def test_an_unknown_host() -> None:
    assert "RabbitMQ at no.such.host.invalid:5672 can't be reached: " in await refused(
        "amqp://no.such.host.invalid/"
    )


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "the connection was closed without a word"),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "the broker does not speak AMQP 0-9-1: it sent b'HTTP/1.1 400 Bad'",
        ),
        (b"AMQP\x00\x01\x00\x00", "the broker does not speak AMQP 0-9-1: it sent b'AMQP"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "the broker does not speak AMQP 0-9-1 (perhaps it expects TLS): "),
    ],
)
async def test_something_else_answers(
    listen: Callable[[Talk], Awaitable[int]], answer: bytes, text: str
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(8) == b"AMQP\x00\x00\x09\x01"
        writer.write(answer)
        await writer.drain()

    port = await listen(talk)
    assert (await refused(f"amqp://127.0.0.1:{port}/")).startswith(f"RabbitMQ at 127.0.0.1:{port}: {text}")


@pytest.mark.parametrize("scheme", ["amqp", "amqps"])
async def test_a_peer_that_says_nothing(listen: Callable[[Talk], Awaitable[int]], scheme: str) -> None:
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()

    port = await listen(talk)
    text = await refused(f"{scheme}://127.0.0.1:{port}/", timeout_s=0.3)
    assert text == f"RabbitMQ at 127.0.0.1:{port} did not answer within 0.3 s"
    await asyncio.wait_for(gone.wait(), 10)  # the socket was closed


async def test_a_node_that_refuses_or_lets_us_in_is_not_waited_for(vhost: Vhost, free_port: int) -> None:
    for url in (vhost.amqp_url, _with(vhost.amqp_url, password="wrong"), f"amqp://127.0.0.1:{free_port}/"):
        await until_it_answers(RabbitSettings(url=url), "test", timeout_s=FOR_EVER_S)


async def test_a_node_that_stands_still_is_waited_for(listen: Callable[[Talk], Awaitable[int]]) -> None:
    here, goes_on = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here.set()
        await goes_on.wait()

    node = RabbitSettings(url=f"amqp://127.0.0.1:{await listen(talk)}/")
    await until_it_answers(node, "test", timeout_s=0.1)
    here.clear()
    waiting = asyncio.create_task(until_it_answers(node, "test", timeout_s=FOR_EVER_S))
    await here.wait()
    assert not waiting.done()
    goes_on.set()
    await waiting


async def test_a_host_that_is_away_is_waited_for() -> None:
    """Nobody knows whether RabbitMQ still runs there."""
    node = RabbitSettings(url="amqp://no.such.host.invalid/")
    waiting = asyncio.create_task(until_it_answers(node, "test", timeout_s=FOR_EVER_S))
    with pytest.raises(BrokerUnavailable):
        await Link.open(node, name="test", on_events=lambda events: None)
    assert not waiting.done()
    waiting.cancel()


async def test_an_open_that_is_cancelled_closes_its_socket(listen: Callable[[Talk], Awaitable[int]]) -> None:
    here, gone = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        here.set()
        await reader.read()
        gone.set()

    port = await listen(talk)
    settings = RabbitSettings(url=f"amqp://127.0.0.1:{port}/")
    opening = asyncio.create_task(Link.open(settings, name="test", on_events=lambda events: None))
    await asyncio.wait_for(here.wait(), 10)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await asyncio.wait_for(gone.wait(), 10)


async def test_tls_to_a_port_without_tls(vhost: Vhost) -> None:
    text = await refused(_with(vhost.amqp_url).replace("amqp:", "amqps:"))
    assert "can't be reached: TLS failed (" in text


async def test_certificate_files_that_cannot_be_used(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for given, text in (
        ({"ca_file": str(tmp_path / "no.pem")}, "rabbitmq.ca_file: .*no.pem: No such file or directory"),
        ({"ca_file": str(bad)}, "rabbitmq.ca_file: .*bad.pem: not a PEM file that can be used"),
        ({"cert_file": str(bad)}, "rabbitmq.cert_file: .*bad.pem: not a PEM file that can be used"),
        (
            {"cert_file": str(bad), "key_file": str(tmp_path / "no.pem")},
            "rabbitmq.cert_file: .*bad.pem and .*no.pem: ",
        ),
    ):
        settings = RabbitSettings(url="amqps://127.0.0.1:1/", **given)
        with pytest.raises(ConfigurationError, match=text):
            await Link.open(settings, name="test", on_events=lambda events: None)
