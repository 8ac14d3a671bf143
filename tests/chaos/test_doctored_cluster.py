"""What is planted in a record of a run on a cluster is found as ever; what a lost node excuses is not."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest

from tests.chaos.cluster import ClusterServers
from tests.chaos.doctored import LANE, ONE, THREE, TWO, Doctored, handled
from tests.chaos.evidence import gather
from tests.chaos.fail_overs import Proxied
from tests.chaos.faults import Faults
from tests.chaos.going_on import Limits
from tests.chaos.leaderships import paused_by_moves
from tests.chaos.parts import NodeFault, Outage
from tests.chaos.plan import ON_CLUSTER, PARTITIONS, Plan
from tests.chaos.proxies import Proxies
from tests.chaos.verdict import NO_VERDICT, Verdict, after_faults, is_unhurt
from tests.client.tcp_proxy import Connection, TcpProxy

KILLED_NODE = Outage(2.5, 9.0, killed=True)
AGAIN = handled(3, 5.0, 1, epoch=2)


@pytest.fixture
def on_cluster(doctored: Doctored) -> Iterator[Doctored]:
    """Consumer `a` is connected to node 0."""
    servers = doctored.stage.cluster = ClusterServers(PARTITIONS[0], Proxied())
    doctored.stage.rabbitmq_outages.append(KILLED_NODE)
    ways = [TcpProxy(f"amqp://127.0.0.1:{port}/") for port in (1, 2, 3)]
    ways[0].connections = [Connection(0.0)]
    doctored.a.proxy = Proxies(ways)
    yield doctored
    servers.close()


def test_what_is_planted_is_found_although_a_node_was_killed(on_cluster: Doctored) -> None:
    on_cluster.write(on_cluster.a, ONE, TWO, THREE)
    assert not on_cluster.found()
    on_cluster.write(on_cluster.a, ONE, TWO)
    assert on_cluster.found() == {"lost"}
    on_cluster.write(on_cluster.a, ONE, handled(3, 2.0, 2), handled(2, 3.0, 3))
    assert "out of order" in on_cluster.found()
    on_cluster.write(on_cluster.a, ONE, TWO, THREE)
    on_cluster.write(on_cluster.b, AGAIN)
    assert "doubled" in on_cluster.found()


def test_what_went_through_a_node_that_was_given_up_does_not_count(on_cluster: Doctored) -> None:
    """Others gave up node 0, with `a`, while `a` handled 3 and could not know it."""
    begun = handled(3, 3.0, 3).partition("confirmed")[0]
    on_cluster.write(on_cluster.a, ONE, TWO, begun, "over 9.0 aaaa taken\n")
    on_cluster.write(on_cluster.b, handled(3, 5.0, 1, epoch=2, attempt=2))
    assert "doubled" in on_cluster.found()
    proxy = on_cluster.a.proxy
    assert isinstance(proxy, Proxies)
    proxy.lost(1, 2.9)
    assert "doubled" in on_cluster.found(), "that was another node"
    proxy.lost(0, 2.9)
    assert not on_cluster.found()
    on_cluster.write(on_cluster.b)
    assert not on_cluster.found(), "the node may have read its settle when it went on"
    on_cluster.write(on_cluster.a, ONE, TWO, begun.partition("ended")[0], "over 9.0 aaaa taken\n")
    assert on_cluster.found() == {"lost"}, "nobody has handled it so that it counts"


@pytest.mark.parametrize("is_silent", [True, False])
async def test_who_stands_still_does_not_hear_that_its_node_ends(
    on_cluster: Doctored, *, is_silent: bool
) -> None:
    """RabbitMQ ends its channel at once, and waits for its answer before it ends the connection."""
    servers, proxy = on_cluster.stage.cluster, on_cluster.a.proxy
    assert isinstance(servers, ClusterServers)
    if is_silent:
        on_cluster.a.silent.append((0.0, time.monotonic() + 60.0))
    node = servers.nodes[0]
    await Faults(on_cluster.stage, print).end_in_order(node, node.stop)
    (connection,) = proxy.connections
    assert (connection.closed < math.inf) is is_silent


@pytest.mark.parametrize(("name", "partitions", "is_found"), [
    ("part_node", "autoheal", False), ("part_node", "ignore", False), ("part_node", "pause_minority", True),
    ("freeze_node", "pause_minority", False), ("kill_node", "pause_minority", True),
    ("kill_node", "autoheal", True),
])  # fmt: skip
def test_nodes_that_went_on_apart_may_forget_queues(
    on_cluster: Doctored, name: str, partitions: str, *, is_found: bool
) -> None:
    on_cluster.configure(partitions=partitions)
    on_cluster.stage.node_faults.append(NodeFault(name, 1, 2.0, 8.0, 6.0))
    on_cluster.write(on_cluster.a, ONE, TWO, THREE, "over 9.0 aaaa taken\n")
    assert ("taken back" in on_cluster.found()) == is_found


def test_others_may_go_on_when_a_leader_has_taken_such_a_consumer_back(on_cluster: Doctored) -> None:
    """It was connected all the time, and heard of that at 9.0."""
    on_cluster.configure(partitions="pause_minority")
    on_cluster.stage.node_faults.append(NodeFault("freeze_node", 1, 2.0, 8.0, 6.0))
    on_cluster.write(on_cluster.a, ONE, TWO, "over 9.0 aaaa taken\n")
    on_cluster.write(on_cluster.b, handled(3, 5.0, 1, epoch=2))
    on_cluster.led_at(0.5)
    on_cluster.logged(4.0, "consumer_taken_back", consumer=on_cluster.b.who)
    on_cluster.logged(5.5, "consumer_taken_back", consumer=on_cluster.a.who)
    assert "owner changed" in on_cluster.found(), "it was taken back too late, and the other one is another"
    on_cluster.logged(4.0, "consumer_taken_back", consumer=on_cluster.a.who)
    assert not on_cluster.found()
    on_cluster.stage.node_faults = [NodeFault("freeze_node", 1, 4.5, 8.0, 6.0)]
    assert on_cluster.found() == {"taken back"}, "no node stood still before"


def test_a_run_in_which_no_node_was_hurt_proves_nothing(on_cluster: Doctored) -> None:
    stage = on_cluster.stage
    assert not is_unhurt(stage), "its plan has no such fault"
    stage.plan = Plan(1, 300.0, on_cluster=True)
    assert is_unhurt(stage)
    assert Verdict(is_unhurt=True).exit_code == NO_VERDICT
    stage.node_faults.append(NodeFault("kill_node", 1, 9.0, 12.0, 3.0))
    assert not is_unhurt(stage)


def test_a_lane_may_wait_with_moves_for_a_consumer_that_stands_still(on_cluster: Doctored) -> None:
    def paused() -> list[float]:
        return [at for interval in paused_by_moves(on_cluster.stage, LANE) for at in interval]

    on_cluster.led_at(0.5)
    on_cluster.logged(2.0, "groups_moving", groups=0, pause="lane")
    on_cluster.logged(3.0, "groups_moving", groups=2, pause="lane")
    on_cluster.logged(4.0, "groups_moving", groups=1, pause="groups")
    on_cluster.logged(5.0, "lane_goes_on")
    on_cluster.logged(6.0, "groups_moving", groups=1, pause="lane")
    assert paused() == pytest.approx([3.0, 3.0, 6.0, 6.0], abs=0.1), "nobody stood still"
    on_cluster.a.silent.append((1.0, 8.0))
    assert paused() == pytest.approx([3.0, 5.0, 6.0, 8.0], abs=0.1)
    on_cluster.logged(7.0, "lane_interrupted")
    assert paused() == pytest.approx([3.0, 5.0, 6.0, 7.0], abs=0.1)


def test_a_lane_that_stands_still_after_a_fail_over_is_found(on_cluster: Doctored) -> None:
    def found(*, promoted: bool = True, killed: bool = False) -> list[bool]:
        stage = on_cluster.stage
        stage.redis_outages = [Outage(8.0, 9.0, killed=True, promoted=promoted)]
        stage.node_faults = [NodeFault("kill_node", 1, 8.5, 11.0, 3.0)] if killed else []
        stood = after_faults(stage, gather(stage, LANE), Limits(), 90.0)
        return [one.violation() is not None for one in stood]

    on_cluster.sent(m1=0.1, m2=0.1, m3=9.1)
    on_cluster.write(on_cluster.a, ONE, TWO, handled(3, 15.0, 3))
    assert found() == [True]
    assert found(promoted=False) == []
    assert found(killed=True)[-1] is False
    on_cluster.write(on_cluster.a, ONE, TWO, handled(3, 13.0, 3))
    assert found() == [False]


def test_a_lane_has_its_time_once_more_after_such_a_wait(on_cluster: Doctored) -> None:
    def is_late() -> bool:
        stage = on_cluster.stage
        (stall,) = after_faults(stage, gather(stage, LANE), Limits(), 90.0)
        return stall.violation() is not None

    on_cluster.sent(m1=0.1, m2=0.1, m3=13.0)
    on_cluster.stage.node_faults.append(NodeFault("kill_node", 1, 9.0, 12.0, 3.0))
    on_cluster.write(on_cluster.a, ONE, TWO, handled(3, 40.0, 3))
    on_cluster.a.silent.append((8.0, 39.0))
    on_cluster.led_at(0.5)
    assert is_late()
    on_cluster.logged(9.5, "groups_moving", groups=1, pause="lane")
    assert not is_late()


def test_a_killed_node_forgets_no_acks(on_cluster: Doctored) -> None:
    """Redis forgot, and nobody led, then a node was killed: of long before nothing is excused."""
    on_cluster.stage.rabbitmq_outages = [Outage(8.5, 9.0, killed=True)]
    on_cluster.stage.redis_outages.append(Outage(8.0, 8.2, killed=True, back_to=8.0))
    on_cluster.led_at(8.4)
    on_cluster.write(on_cluster.a, ONE, TWO, THREE)
    on_cluster.write(on_cluster.b, handled(3, 10.0, 1, epoch=2))
    assert "doubled" in on_cluster.found()
    on_cluster.stage.cluster = None
    assert "doubled" not in on_cluster.found(), "a broker that is alone forgets them"


def handled_again_after_a_replica_took_over(on_cluster: Doctored) -> None:
    promoted = Outage(3.5, 4.0, killed=True, back_to=3.5, promoted=True)
    on_cluster.stage.redis_outages.append(promoted)
    on_cluster.write(on_cluster.a, ONE, TWO, THREE)
    on_cluster.write(on_cluster.b, AGAIN)
    on_cluster.led_at(0.5)


def test_a_replica_lacks_nothing_if_one_leader_saw_it_take_over(on_cluster: Doctored) -> None:
    handled_again_after_a_replica_took_over(on_cluster)
    assert "doubled" in on_cluster.found()
    on_cluster.led_at(4.4)
    assert "doubled" not in on_cluster.found()


def test_a_leader_that_was_killed_after_it_had_looked_lacks_nothing(on_cluster: Doctored) -> None:
    handled_again_after_a_replica_took_over(on_cluster)
    on_cluster.stage.replicas[0].ended_at.append(6.0)
    on_cluster.logged(2.0, "redis_unavailable")
    on_cluster.logged(2.1, "redis_available")
    assert "doubled" not in on_cluster.found(), "that was before"
    on_cluster.logged(3.6, "redis_unavailable")
    assert "doubled" not in on_cluster.found()
    on_cluster.logged(4.2, "redis_available")
    assert "doubled" in on_cluster.found()


def test_what_a_replica_lacks_that_was_cut_off_is_no_excuse_while_one_leads(on_cluster: Doctored) -> None:
    cut_off = Outage(8.0, 8.2, killed=True, back_to=2.0, promoted=True)
    on_cluster.stage.redis_outages.append(cut_off)
    on_cluster.write(on_cluster.a, ONE, TWO, THREE)
    on_cluster.write(on_cluster.b, handled(3, 10.0, 1, epoch=2))
    on_cluster.led_at(0.5)
    assert "doubled" in on_cluster.found()
    on_cluster.led_at(8.4)
    assert "doubled" not in on_cluster.found(), "the settles that it lacked were known to nobody"


def test_what_the_redis_of_another_lane_has_lost_is_no_excuse(on_cluster: Doctored) -> None:
    on_cluster.write(on_cluster.a, ONE, TWO, THREE)
    on_cluster.write(on_cluster.b, AGAIN)
    on_cluster.led_at(4.4)
    for lanes, is_found in ((frozenset({"another"}), True), (frozenset({LANE.name}), False)):
        lost = Outage(3.5, 4.0, killed=True, back_to=3.5, promoted=True, lanes=lanes)
        on_cluster.stage.redis_outages = [lost]
        assert ("doubled" in on_cluster.found()) == is_found


def test_a_plan_on_a_cluster_hurts_nodes_and_leaves_lanes_the_time_to_go_on() -> None:
    plan = Plan(1, 100.0, on_cluster=True)
    assert plan.settings.stopping == ()
    names = {kind.name for kind in ON_CLUSTER["node"].kinds}
    assert {fault.name for fault in plan.faults} & names
    assert max(fault.at_s for fault in plan.faults if fault.name in names) < 80.0
    upkeep = {kind.name for kind in ON_CLUSTER["upkeep"].kinds}
    longer = [fault for fault in Plan(1, 600.0, on_cluster=True).faults if fault.name in upkeep]
    assert {fault.name for fault in longer} == upkeep
    assert max(fault.at_s for fault in longer) < 540.0
    assert not {fault.name for fault in Plan(1, 100.0).faults} & names
