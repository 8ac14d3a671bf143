"""Another number of shards while an inbound queue of a shard can't be looked into: groups stay where they are
until it can, and nothing of them is lost or comes out of order."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from dispatcher.amqp.methods import ExchangeDelete
from dispatcher.errors import BrokerUnavailable
from dispatcher.nodes import LocalCluster, with_vhost
from dispatcher.service.lane_runner import LaneRunner
from dispatcher.settings import RabbitSettings
from dispatcher.wire.shards import ShardNames, shard_name
from tests.conftest import Vhost
from tests.service.clients import Client
from tests.service.harness import LANE, START_S, Bench, bench_of, lane
from tests.service.program import Ended, program
from tests.spec.lane_bench import clause
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SHARDS: Final = 3
NAMES: Final = [shard_name(LANE, number) for number in range(1, SHARDS + 1)]
GROUPS: Final = [f"group {number}" for number in range(12)]
#: Its queue has one member, which is on the node that is lost: then it has no leader.
NO_LEADER: Final = {"x_queue_type": "quorum", "x_quorum_initial_group_size": 1}


@pytest.fixture
def vhost(cluster_vhost: Vhost) -> Vhost:
    return cluster_vhost


@pytest.mark.parametrize(
    ("usual", "lost", "is_led"),
    [
        pytest.param({}, {}, True, id="its node is away"),
        pytest.param({"x_queue_type": "quorum"}, NO_LEADER, True, id="no leader"),
        pytest.param({"x_queue_type": "quorum"}, NO_LEADER, False, id="no leader, shard not led"),
    ],
)
async def test_groups_stay_in_their_shards_while_one_can_not_be_looked_into(
    cluster: LocalCluster, vhost: Vhost, usual: dict[str, Any], lost: dict[str, Any], is_led: bool
) -> None:
    *urls, lost_url = [with_vhost(url, vhost.name) for url in cluster.amqp_urls]
    keys = {"changes": {"rabbitmq": {"urls": urls}}, LANE: lane(shards=SHARDS)}
    async with bench_of(vhost) as bench, Client.opened(RabbitSettings(url=lost_url)) as at_lost:
        client, names = await bench.client(), ShardNames(LANE, vhost.redis_prefix)
        for number in range(1, SHARDS):
            await client.declare(shard_name("in", number), **usual)
        await at_lost.declare(shard_name("in", SHARDS), **lost)
        await bench.run(**keys)
        await published(client, names, b"1", GROUPS)
        await eventually(lambda: sum(bench.status(name)["held"] for name in NAMES) == len(GROUPS))
        assert all(bench.status(name)["held"] for name in NAMES)
        listed = await bench.ask("groups.list", NAMES[0], limit=1)
        others = [listed["groups"][0]["group"]]
        if not is_led:
            await bench.stop(NAMES[-1])
        await asyncio.to_thread(cluster.nodes[2].kill9)
        await asyncio.to_thread(cluster.wait_for, cluster.nodes[:2])

        refused = await reshard(bench)
        assert (refused.returncode, shard_name("in", SHARDS) in refused.stderr) == (1, True), refused.stderr
        await published(client, names, b"2", others)

        await asyncio.to_thread(cluster.nodes[2].start)
        await asyncio.to_thread(cluster.wait_for, cluster.nodes)
        if not is_led:
            for name in NAMES[:-1]:
                await bench.stop(name)
            await bench.run(**keys)
        consumers = [await bench.joined("c", name) for name in NAMES]

        def got() -> list[tuple[str, bytes]]:
            return [(copy.group.decode(), copy.body) for each in consumers for copy in each.received]

        first = sorted([(group, b"1") for group in GROUPS] + [(group, b"2") for group in others])
        await eventually(lambda: sorted(got()) == first, START_S, "all of it to be handed over")
        assert got().index((others[0], b"1")) < got().index((others[0], b"2"))
        done = await reshard(bench)
        assert done.returncode == 0, done.stderr
        await published(client, names, b"3", GROUPS)
        after = sorted([*first, *((group, b"3") for group in GROUPS)])
        await eventually(lambda: sorted(got()) == after, START_S, "what came after the change")
        assert b"3" not in consumers[-1].bodies()


async def test_a_start_leaves_groups_where_they_are_while_a_former_shard_can_not_be_looked_into(
    cluster: LocalCluster, vhost: Vhost
) -> None:
    """The exchange is gone, as after a restart of all nodes: without it nobody can publish. With fewer shards
    the one that nobody can look into would have no leader."""
    clause("S-5", "or can't look into a shard, leaves the groups where they were")
    *urls, lost_url = [with_vhost(url, vhost.name) for url in cluster.amqp_urls]
    changes = {"rabbitmq": {"urls": urls}}
    async with bench_of(vhost) as bench, Client.opened(RabbitSettings(url=lost_url)) as at_lost:
        client, names = await bench.client(), ShardNames(LANE, vhost.redis_prefix)
        for number in (*range(1, SHARDS), SHARDS + 1):
            await client.declare(shard_name("in", number), x_queue_type="quorum")
        await at_lost.declare(shard_name("in", SHARDS), **NO_LEADER)
        await bench.run(changes=changes, **{LANE: lane(shards=SHARDS)})
        await published(client, names, b"1", GROUPS)
        await eventually(lambda: sum(bench.status(name)["held"] for name in NAMES) == len(GROUPS))
        listed = [await bench.ask("groups.list", name) for name in NAMES[:-1]]
        others = [row["group"] for each in listed for row in each["groups"]]
        for name in NAMES:
            await bench.stop(name)
        await client.link.call(client.channel, ExchangeDelete(exchange=names.exchange))
        await asyncio.to_thread(cluster.nodes[2].kill9)
        await asyncio.to_thread(cluster.wait_for, cluster.nodes[:2])

        fewer = bench.settings(changes=changes, **{LANE: lane(shards=SHARDS - 1)})
        with pytest.raises(BrokerUnavailable):
            await LaneRunner(fewer, fewer.lanes[shard_name(LANE, 1)]).prepare()
        await bench.run(wait=False, changes=changes, **{LANE: lane(shards=SHARDS + 1)})
        for name in NAMES[:-1]:
            await bench.leads(name)
        await published(client, names, b"2", others)
        consumers = [await bench.joined("c", name) for name in NAMES[:-1]]

        def got() -> list[tuple[str, bytes]]:
            return [(copy.group.decode(), copy.body) for each in consumers for copy in each.received]

        wanted = sorted((group, body) for group in others for body in (b"1", b"2"))
        await eventually(lambda: sorted(got()) == wanted, START_S, "all of the shards that are led")
        assert all(got().index((group, b"1")) < got().index((group, b"2")) for group in others)


async def published(client: Client, names: ShardNames, body: bytes, groups: list[str]) -> None:
    for group in groups:
        client.send("in", body, group, exchange=names.exchange)
    await client.confirmed()


async def reshard(bench: Bench) -> Ended:
    fewer = str(SHARDS - 1)
    return await program(
        bench.vhost, "lane", "reshard", LANE, "--shards", fewer, "--timeout", "5s", shards=SHARDS
    )
