"""Faults of one node of a cluster, while the others are well. A single node has none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dispatcher.sim.faults.striking import Faults, fault
from dispatcher.sim.nodes import Cluster
from dispatcher.sim.queues import Node
from dispatcher.sim.scenario import Fault

#: How long one is away, or apart: less or more than the others need to give it up.
_AWAY_MS: Final = 9_000
#: One of so many that are killed or stopped is away for so many times longer: for longer than a lane may
#: stand still (R-9).
_LONG, _LONG_TIMES = 4, 2.5
#: For how long the leader of a quorum queue has an ack alone, at most.
_ALONE_MS: Final = 30
#: One stands still for so many times longer: a queue's new leader may need that long to find it out.
_STILL_TIMES: Final = 2


def _hurt(
    faults: Faults, fault: Fault, hurt: Callable[[Cluster, Node], None],
    mend: Callable[[Cluster, Node], None] | None, times: float = 1,
) -> bool:  # fmt: skip
    """Do that to a node, and call `mend` when it is to be well again. False: one is hurt, or there is no
    cluster."""
    cluster = faults.world.broker
    if not isinstance(cluster, Cluster) or cluster.hurt is not None:
        return False
    node = _node(faults, cluster, fault)
    hurt(cluster, node)
    if mend is not None:
        faults.after(200 + int(fault.amount % _AWAY_MS * times), mend, cluster, node)
    return True


def _times(fault: Fault) -> float:
    return 1 if fault.amount % _LONG else _LONG_TIMES


def _node(faults: Faults, cluster: Cluster, fault: Fault) -> Node:
    """Any one; or one that the lane needs: that it is led through, or with its lock, or an inbound queue."""
    names = [faults.world.names.lock, *(name for name, _, _ in faults.world.scenario.inbounds)]
    found = [cluster.queues[name].node for name in names if name in cluster.queues]
    found += [connection.node for connection in faults.connections_of(faults.leader_or(fault).process)]
    found += cluster.nodes[fault.amount % len(cluster.nodes) :][:1]
    return found[fault.target % len(found)]


@fault(often=0)
def kill_node(faults: Faults, fault: Fault) -> bool:
    """A node of a cluster is killed, and starts again."""
    return _hurt(faults, fault, Cluster.kill_node, Cluster.start_node, _times(fault))


@fault(often=0)
def stop_node(faults: Faults, fault: Fault) -> bool:
    """A node is stopped in order, and starts again."""
    return _hurt(faults, fault, Cluster.stop_node, Cluster.start_node, _times(fault))


@fault(often=0)
def freeze_node(faults: Faults, fault: Fault) -> bool:
    """A node stands still. After 4.5 to 7.5 s each other one gives it up by itself. Then it goes on, and does
    what it read meanwhile. If others have given it up, it is apart from them until one part is restarted."""
    return _hurt(faults, fault, Cluster.freeze_node, Cluster.thaw_node, _STILL_TIMES)


@fault(often=0)
def part_node(faults: Faults, fault: Fault) -> bool:
    """A node and the others lose sight of each other, while clients reach all of them. It pauses
    (`pause_minority`), or goes on alone until they see each other again: then one part is restarted, by
    RabbitMQ (`autoheal`) or by an operator (`ignore`)."""
    return _hurt(faults, fault, Cluster.part_node, Cluster.heal_node)


@fault(often=0)
def slow_members(faults: Faults, fault: Fault) -> bool:
    """From now on the leaders of quorum queues have acks up to 30 ms before any other member. If the node of
    one is lost then, its successor knows nothing of them."""
    cluster = faults.world.broker
    if isinstance(cluster, Cluster):
        cluster.alone_ms = 1 + fault.amount % _ALONE_MS
    return isinstance(cluster, Cluster)


@fault(often=0)
def lose_node(faults: Faults, fault: Fault) -> bool:
    """A node is lost for good. Operators forget it after a while, with all that was only there, and a new one
    takes its place."""
    return _hurt(faults, fault, Cluster.lose_node, None)
