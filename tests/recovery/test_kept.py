"""A lane's history is read at a cluster of which some nodes have no replica of it that runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from pamqp import commands
from typer.testing import CliRunner, Result

from dispatcher.amqp import wire
from dispatcher.amqp.history_message import kept_frames
from dispatcher.amqp.properties import HEADERS
from dispatcher.amqp.relay import Content
from dispatcher.cli import app
from dispatcher.judge.record import MessageKey
from dispatcher.nodes import LocalCluster, with_vhost
from dispatcher.nodes.ports import free_ports
from dispatcher.settings import RabbitSettings
from dispatcher.wire.protocol import LaneNames
from tests.chaos.kept import not_kept
from tests.conftest import Vhost
from tests.service.clients import Client
from tests.service.harness import LANE, document, lane
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KEY = MessageKey("in", "g", 0, 1)
#: Each connects to the nodes in another order.
READINGS = 6


@pytest.fixture
def vhost(cluster_vhost: Vhost) -> Vhost:
    return cluster_vhost


@pytest.fixture
def urls(cluster: LocalCluster, vhost: Vhost) -> list[str]:
    return [with_vhost(url, vhost.name) for url in cluster.amqp_urls]


@pytest.fixture
async def stream(urls: list[str], vhost: Vhost) -> str:
    """A history with one message, and with a replica at the last node alone."""
    names = LaneNames(LANE, vhost.redis_prefix)
    properties = bytes((HEADERS, 0)) + wire.pack_u32(0)
    content = Content(
        None, False, None, b"1", b"", b"in", properties, len(properties), len(properties), KEY.body()
    )
    async with Client.opened(RabbitSettings(url=urls[-1])) as client:
        await client.declare(names.history, x_queue_type="stream", x_initial_cluster_size=1)
        await client.declare("copies")
        for method in (
            commands.Exchange.Declare(exchange=names.command_exchange, durable=True),
            commands.Queue.Bind(
                queue=names.history, exchange=names.command_exchange, routing_key=names.history
            ),
        ):  # as a dispatcher does
            await client.link.call(client.channel, method)
        frames = kept_frames(
            content, channel=client.channel, exchange="", routing_key=names.history, group=b"g",
            origin="in 1.1", kept_at_ms=1, redelivered=False, frame_max=client.link.frame_max,
        )  # fmt: skip
        client.link.write(client.channel, frames, 1)
        await client.confirmed()
    return names.history


class Operator:
    """Types `dispatcher replay`, with these nodes in the configuration."""

    def __init__(self, vhost: Vhost, file: Path) -> None:
        self._vhost, self._file = vhost, file

    async def replays(self, urls: list[str]) -> Result:
        kept: dict[str, Any] = {LANE: lane(history={"max_age": "7d"})}
        written = document(urls[0], self._vhost.redis_url, self._vhost.redis_prefix, kept)
        self._file.write_text(yaml.safe_dump(written | {"rabbitmq": {"urls": urls}}))
        command = ["replay", LANE, "--all", "--to", "copies", "--json", "-c", str(self._file)]
        return await asyncio.to_thread(CliRunner().invoke, app, command, prog_name="dispatcher")


@pytest.fixture
def operator(vhost: Vhost, tmp_path: Path) -> Operator:
    return Operator(vhost, tmp_path / "dispatcher.yaml")


async def test_chaos_reads_it_where_a_replica_of_it_runs(urls: list[str], stream: str) -> None:
    assert await not_kept(urls, stream, frozenset([KEY])) == []
    (found,) = await not_kept(urls[:1], stream, frozenset([KEY]), readable_s=0.0)
    assert found.startswith("not live")


async def test_a_replay_reads_it_where_a_replica_of_it_runs(
    urls: list[str], stream: str, operator: Operator
) -> None:
    for _ in range(READINGS):
        result = await operator.replays(urls)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["messages"] == 1


async def test_a_replay_says_what_to_do_where_none_runs(
    cluster: LocalCluster, vhost: Vhost, urls: list[str], stream: str, operator: Operator
) -> None:
    (port,) = free_ports(1)
    result = await operator.replays([*urls[:2], f"amqp://guest:guest@127.0.0.1:{port}/{vhost.name}"])
    assert result.exit_code == 1
    for node in [urlsplit(url).port for url in urls[:2]] + [port]:
        assert f"127.0.0.1:{node}" in result.output
    assert f"rabbitmq-streams add_replica --vhost {vhost.name} {stream} NODE" in result.output
    first = cluster.nodes[0]
    first.evaluate(
        f'rabbit_stream_queue:add_replica(<<"{vhost.name}">>, <<"{stream}">>, {first.node!r})'
    )  # as that command does

    async def is_readable() -> bool:
        return (await operator.replays(urls[:1])).exit_code == 0

    await eventually(is_readable)
