"""A run names the queues of its lanes that RabbitMQ has left without a leader. It judges what happened until
then; what is missing may be in them."""

from __future__ import annotations

import asyncio

import pytest

from dispatcher.nodes.servers import PrivateServers
from dispatcher.settings import RabbitSettings
from tests.chaos.doctored import LANE, ONE, TWO, Doctored, handled
from tests.chaos.lanes import LaneOnStage
from tests.chaos.leaderless import of_lanes, told_apart, without_leader
from tests.chaos.stage import PREFIX
from tests.chaos.verdict import NO_VERDICT, VIOLATED, Verdict, end_and_judge
from tests.service.clients import Client

OTHER = LaneOnStage("orders2", "sequenced")
TWICE = handled(2, 2.5, 3)


async def _left(servers: PrivateServers, queue: str) -> None:
    """RabbitMQ has left this one, of one node, without a leader."""
    await asyncio.to_thread(
        servers.rabbitmq.evaluate, f"ra:stop_server(quorum_queues, {{'%2F_{queue}', node()}})"
    )


async def test_a_queue_without_a_leader_is_named(private_servers: PrivateServers) -> None:
    rabbitmq = private_servers.rabbitmq
    async with Client.opened(RabbitSettings(url=private_servers.amqp_url)) as client:
        for queue in ("well", "left"):
            await client.declare(queue, x_queue_type="quorum")
        assert await asyncio.to_thread(without_leader, [rabbitmq]) == []
        await _left(private_servers, "left")
        assert await asyncio.to_thread(without_leader, [rabbitmq]) == ["left"]


@pytest.mark.parametrize(
    ("left", "without", "kinds"),
    [
        pytest.param("orders.low", ["orders.low"], set(), id="inbound"),
        pytest.param(f"{PREFIX}.orders.dead", [f"{PREFIX}.orders.dead"], set(), id="dead"),
        pytest.param("another", [], {"lost", "not live"}, id="not the run's"),
    ],
)
async def test_a_run_that_is_not_drained_is_judged(
    private_servers: PrivateServers, doctored: Doctored, left: str, without: list[str], kinds: set[str]
) -> None:
    """The third message was never handled. Nothing runs, so nothing is drained."""
    doctored.stage.servers = private_servers
    for process in [*doctored.stage.consumers, *doctored.stage.producers]:
        process.left_at = 9.0
    own = [f"{PREFIX}.orders.{queue}" for queue in ("dead", "control", "command")]
    async with Client.opened(doctored.stage.rabbitmq) as client:
        for queue in (*LANE.queues, *own, left):
            await client.declare(queue, x_queue_type="quorum")
        await client.declare(LANE.target)
    await _left(private_servers, left)
    for record, doubled in ((ONE + TWO, set()), (ONE + TWO + TWICE, {"doubled"})):
        doctored.write(doctored.a, record)
        verdict = await end_and_judge(doctored.stage, still_s=0.0)
        assert verdict.without_leader == without
        assert {text.partition(":")[0] for text in verdict.violations} == kinds | doubled
        assert verdict.exit_code == (VIOLATED if kinds | doubled else NO_VERDICT)
        assert {text.partition(":")[0] for text in verdict.excused} == {"lost", "not live"} - kinds


def test_a_queue_excuses_its_lane_alone() -> None:
    left = ["orders.high", f"{PREFIX}.orders.park.1", "high", f"{PREFIX}.orders3.park.1"]
    assert of_lanes(left, [LANE, OTHER]) == [f"{PREFIX}.orders.park.1", "orders.high"]
    assert of_lanes(left, [OTHER]) == []
    found = ["lost: 1", "left in orders.low: 2 messages", "not live: no", "not kept in the history: 1"]
    assert told_apart([*found, "out of order: 1"], left, [LANE]) == (["out of order: 1"], found)
    assert told_apart(found, left, [OTHER]) == (found, [])


def test_a_parking_queue_hides_nothing_when_nothing_is_missing() -> None:
    park = f"{PREFIX}.orders.park.1"
    assert Verdict(without_leader=[park]).exit_code == 0
    assert Verdict(without_leader=[park], excused=["lost: 1"]).exit_code == NO_VERDICT
    assert Verdict(without_leader=[park, f"{PREFIX}.orders.dead"]).exit_code == NO_VERDICT
    assert Verdict(without_leader=[park], problems=["doubled: 1"]).exit_code == VIOLATED
