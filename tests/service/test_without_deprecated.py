"""RabbitMQ 4 that refuses all that it calls deprecated, the metrics of the management API among them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatcher.nodes.installed import rabbitmq_server
from dispatcher.nodes.servers import PrivateServers
from tests.service.harness import LANE, bench_of, lane, private_vhost
from tests.service.program import program

MESSAGES = 60
PERMITTED = (
    "[F || F <- maps:keys(rabbit_deprecated_features:list(all)), rabbit_deprecated_features:is_permitted(F)]"
)


@pytest.fixture
def strict_servers() -> Iterator[PrivateServers]:
    if "rabbitmq_server-3." in str(rabbitmq_server()):
        pytest.skip("RabbitMQ 3 refuses nothing: scripts/test --rabbitmq 4")
    config = ["deprecated_features.permit.management_metrics_collection = false"]
    with PrivateServers(config) as servers:
        yield servers


async def test_lanes_need_nothing_that_is_deprecated(strict_servers: PrivateServers) -> None:
    assert strict_servers.rabbitmq.evaluate(PERMITTED) == "[]"
    vhost = private_vhost(strict_servers)
    async with bench_of(vhost) as bench:
        client = await bench.client()
        await client.declare("in", x_queue_type="quorum", x_delivery_limit=100)
        await bench.run(orders=lane(history={"max_age": "1h"}, dedup={"window": "1m"}, park_after="200ms"))
        for number in range(MESSAGES):
            client.send("in", b"%d" % number, f"g{number % 3}")
        consumer = await bench.joined("one", prefetch=5)
        await consumer.has(MESSAGES)
        await bench.acked()
        for group in range(3):
            assert consumer.bodies(f"g{group}") == [b"%d" % number for number in range(group, MESSAGES, 3)]
        checked = await program(vhost, "check", "--management", strict_servers.management_url)
        assert (checked.returncode, checked.stderr) == (0, "")
        assert bench.runners[LANE].leaderships == 1, "what is refused ends the connection"
