"""Chaos finds a lane's history also at a cluster of which one node has no replica of it that runs."""

from __future__ import annotations

import pytest

from dispatcher.amqp import wire
from dispatcher.amqp.history_message import kept_frames
from dispatcher.amqp.properties import HEADERS
from dispatcher.amqp.relay import Content
from dispatcher.judge.record import MessageKey
from dispatcher.nodes import LocalCluster, with_vhost
from dispatcher.settings import RabbitSettings
from tests.chaos.kept import not_kept
from tests.conftest import Vhost
from tests.service.clients import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STREAM = "history"


@pytest.fixture
def vhost(cluster_vhost: Vhost) -> Vhost:
    return cluster_vhost


async def test_the_history_is_read_where_a_replica_of_it_runs(cluster: LocalCluster, vhost: Vhost) -> None:
    urls = [with_vhost(url, vhost.name) for url in cluster.amqp_urls]
    key = MessageKey("in", "g", 0, 1)
    async with Client.opened(RabbitSettings(url=urls[-1])) as client:
        await client.declare(STREAM, x_queue_type="stream", x_initial_cluster_size=1)
        properties = bytes((HEADERS, 0)) + wire.pack_u32(0)
        content = Content(
            None, False, None, b"1", b"", b"in", properties, len(properties), len(properties), key.body()
        )
        frames = kept_frames(
            content, channel=client.channel, exchange="", routing_key=STREAM, group=b"g", origin="in 1.1",
            kept_at_ms=1, redelivered=False, frame_max=client.link.frame_max,
        )  # fmt: skip
        client.link.write(client.channel, frames, 1)
    assert await not_kept(urls, STREAM, frozenset([key])) == []
    (found,) = await not_kept(urls[:1], STREAM, frozenset([key]), readable_s=0.0)
    assert found.startswith("not live")
