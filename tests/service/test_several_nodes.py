"""`rabbitmq.urls`: one of the nodes is enough."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
import yaml
from typer.testing import CliRunner

from dispatcher.amqp.link import FIRST_TIMEOUT_S, OPEN_TIMEOUT_S, Link
from dispatcher.cli import app
from dispatcher.cli.rabbitmq import connected
from dispatcher.client import GroupProducer
from dispatcher.errors import BrokerUnavailable, ConfigurationError, LoginRefused
from dispatcher.nodes.ports import free_ports
from dispatcher.settings import RabbitSettings
from tests.client.lane_stub import LANE
from tests.client.subjects import AsyncConsumer, BlockingConsumer
from tests.service.harness import Bench, lane

DOWN = 5


def _down(url: str, count: int = DOWN) -> list[str]:
    """The same URL at ports where nothing listens: the one that is up is hardly ever tried first."""
    parts = urlsplit(url)
    who = parts.netloc.rpartition("@")[0]
    return [urlunsplit(parts._replace(netloc=f"{who}@127.0.0.1:{port}")) for port in free_ports(count)]


async def test_a_lane_is_led_whichever_node_is_up(bench: Bench) -> None:
    urls = [*_down(bench.vhost.amqp_url), bench.vhost.amqp_url]
    await bench.run(changes={"rabbitmq": {"urls": urls}}, orders=lane())
    client, consumer = await bench.client(), await bench.joined("one")
    client.send("in", b"1", "g")
    await consumer.has(1)
    await bench.crash()
    await bench.run(changes={"rabbitmq": {"urls": urls}}, orders=lane())


async def test_when_none_can_be_reached_all_are_named(bench: Bench) -> None:
    urls = _down(bench.vhost.amqp_url, 2)
    with pytest.raises(BrokerUnavailable) as raised:
        await Link.open(RabbitSettings(urls=tuple(urls)), name="test", on_events=lambda _: None)
    with pytest.raises(BrokerUnavailable) as blocking, connected(RabbitSettings(urls=tuple(urls)), "test"):
        pass
    for url in urls:
        host = f"127.0.0.1:{urlsplit(url).port} can't be reached"
        assert host in str(raised.value)
        assert host.split()[0] in str(blocking.value)


@contextmanager
def standing_still(url: str, count: int) -> Iterator[list[str]]:
    """The same URL at ports that accept connections, and where nobody answers: as of a stopped process."""
    with ExitStack() as stack:
        ports = []
        for _ in range(count):
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            ports.append(listening.getsockname()[1])
        parts = urlsplit(url)
        who = parts.netloc.rpartition("@")[0]
        yield [urlunsplit(parts._replace(netloc=f"{who}@127.0.0.1:{port}")) for port in ports]


async def test_nodes_that_stand_still_cost_seconds(bench: Bench) -> None:
    up = bench.vhost.amqp_url
    with standing_still(up, 2) as silent:
        settings, began = RabbitSettings(urls=(up, *silent)), time.monotonic()
        link = await Link.open(settings, name="test", on_events=lambda _: None, last=up)
        took_s = time.monotonic() - began
        await link.close()
    assert link.url == up
    assert 2 * FIRST_TIMEOUT_S <= took_s < OPEN_TIMEOUT_S


async def test_a_node_that_is_slow_to_answer_is_waited_for(bench: Bench) -> None:
    with standing_still(bench.vhost.amqp_url, 1) as silent:
        urls = (*silent, *_down(silent[0], 1))
        began = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="did not answer within 4 s"):
            await Link.open(
                RabbitSettings(urls=urls),
                name="test",
                on_events=lambda _: None,
                timeout_s=FIRST_TIMEOUT_S + 1,
            )
    assert time.monotonic() - began >= 2 * FIRST_TIMEOUT_S + 1


async def test_a_login_that_every_node_refuses_is_for_an_operator_to_change(bench: Bench) -> None:
    wrong = bench.vhost.amqp_url.replace("guest:guest", "guest:wrong")
    settings = RabbitSettings(urls=(wrong, wrong))
    with pytest.raises(LoginRefused):
        await Link.open(settings, name="test", on_events=lambda _: None)
    settings = RabbitSettings(urls=(*_down(wrong, 1), wrong))
    with pytest.raises(BrokerUnavailable) as raised:
        await Link.open(settings, name="test", on_events=lambda _: None)
    assert not isinstance(raised.value, LoginRefused), "another node may let us in when it is up again"


def test_commands_use_them_too(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "dispatcher.yaml"
    vhost = bench.vhost
    document = {
        "rabbitmq": {"urls": [*_down(vhost.amqp_url), vhost.amqp_url]},
        "redis": {"url": vhost.redis_url}, "prefix": vhost.redis_prefix, "lanes": {"orders": lane()},
    }  # fmt: skip
    file.write_text(yaml.safe_dump(document))
    result = CliRunner().invoke(app, ["check", "-c", str(file), "--json"])
    assert result.exit_code == 0, result.output
    levels = {finding["level"] for finding in json.loads(result.stdout)["findings"]}
    assert "problem" not in levels


CONSUMERS = pytest.mark.parametrize("kind", [AsyncConsumer, BlockingConsumer], ids=lambda kind: kind.kind)


@CONSUMERS
async def test_consumers_and_producers_take_a_list(
    bench: Bench, kind: type[AsyncConsumer | BlockingConsumer]
) -> None:
    urls = [*_down(bench.vhost.amqp_url), bench.vhost.amqp_url]
    await bench.run(**{LANE: lane()})
    consumer = kind(urls, prefix=bench.vhost.redis_prefix)  # type: ignore[arg-type]
    producer = GroupProducer(urls, "in")
    async with producer:
        await consumer.open()
        await consumer.joined()
        await producer.send(b"1", "g")
        message = await consumer.next()
        assert message.body == b"1"
        await consumer.ack(message)
        await consumer.close()


@pytest.mark.parametrize("urls", [[], ["amqp://h/a", "amqp://h/b"], ["amqp://h/", "nonsense"]])
def test_a_list_that_can_not_work_is_refused(urls: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"^url: "):
        GroupProducer(urls, "in")


def test_no_password_is_shown() -> None:
    settings = RabbitSettings(urls=("amqp://u:hunter2@h/", "amqp://u:hunter3@i/"))
    assert "hunter" not in repr(settings)
