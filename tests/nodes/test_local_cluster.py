"""A private cluster: nodes are killed, frozen, and found again; nothing stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest

from dispatcher.errors import DispatcherError
from dispatcher.nodes import LocalCluster
from dispatcher.nodes.installed import rabbitmq_server
from dispatcher.nodes.local_cluster import ClusterNode
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TICKTIME_S = 4


def test_nodes_leave_and_come_back_and_nothing_stays() -> None:
    """One is parted from the others, one frozen and then killed."""
    cluster = LocalCluster(ticktime_s=TICKTIME_S)
    with cluster:
        first, second, third = cluster.nodes
        assert first.sees() == {node.node for node in cluster.nodes}
        with pika.BlockingConnection(pika.URLParameters(second.amqp_url)) as connection:
            connection.channel().queue_declare("kept", durable=True, arguments={"x-queue-type": "quorum"})
        with parted(cluster, second):
            wait_until(second.is_paused, what="RabbitMQ stopped on the parted node")
        # With its queue it starts again beside the others.
        second.stop()
        second.start()
        cluster.wait_for(cluster.nodes)
        wait_until(lambda: _leader(cluster) == second.node, what="its queue again")
        third.freeze()
        assert third.sees() == set()
        cluster.wait_for([first, second])
        third.thaw()
        third.kill9()
        cluster.wait_for([first, second])
        with pika.BlockingConnection(pika.URLParameters(first.amqp_url)) as connection:
            connection.channel().queue_declare("kept", passive=True)
        third.start()
        cluster.wait_for(cluster.nodes)
        # RabbitMQ pauses both nodes that lose sight of each other alone, until all see all again.
        second.part_from([third])
        wait_until(lambda: second.is_paused() and third.is_paused(), what="both paused")
        assert not first.is_paused()
        assert len(cluster.logs()) >= 3
        folders = [process.directory for process in (node._process for node in cluster.nodes) if process]
        folders.append(cluster._mapper.directory)
    assert not any(Path(folder).exists() for folder in folders)


def test_parted_nodes_may_go_on_and_stay_apart() -> None:
    with LocalCluster(2, ticktime_s=TICKTIME_S, partition_handling="ignore") as cluster:
        node = cluster.nodes[1]
        with parted(cluster, node):
            assert not node.is_paused()
        if "rabbitmq_server-3.10." in str(rabbitmq_server()):  # later ones may find each other again
            with pytest.raises(DispatcherError):
                cluster.wait_for(cluster.nodes, timeout_s=5.0)


@contextmanager
def parted(cluster: LocalCluster, node: ClusterNode) -> Iterator[None]:
    """Inside the block it is apart from the others. It has a queue."""
    others = [other for other in cluster.nodes if other is not node]
    with pika.BlockingConnection(pika.URLParameters(node.amqp_url)) as connection:
        connection.channel().queue_declare("here", durable=True)
    assert cluster.leader_of("here") == node.node
    node.part_from(others)
    cluster.wait_for(others)
    yield
    node.meet(others)


def _leader(cluster: LocalCluster) -> str | None:
    """Where the queue is; None while no node knows it yet."""
    try:
        return cluster.leader_of("here")
    except DispatcherError:
        return None
