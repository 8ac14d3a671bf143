"""The servers of a run on a cluster: three RabbitMQ nodes, and a Redis whose replica takes its place."""

from __future__ import annotations

from dispatcher.nodes import LocalCluster, LocalRedis
from dispatcher.nodes.local_cluster import ClusterNode
from dispatcher.nodes.servers import start_together
from tests.chaos.fail_overs import FailOver

#: Erlang's net_ticktime: others give up a node that stands still between three and five quarters of it later.
TICKTIME_S = 6


class ClusterServers:
    """What `PrivateServers` are for other runs. `redis` is what proxies before Redis lead to at first."""

    def __init__(self, partition_handling: str, fail_over: FailOver) -> None:
        self.cluster = LocalCluster(ticktime_s=TICKTIME_S, partition_handling=partition_handling)
        self.nodes = [*self.cluster.nodes]  # in the order of the proxies
        self.fail_over = fail_over

    @property
    def rabbitmq(self) -> ClusterNode:
        """The first node."""
        return self.nodes[0]

    @property
    def redis(self) -> LocalRedis:
        return self.fail_over.servers[0]

    @property
    def amqp_url(self) -> str:
        return self.rabbitmq.amqp_url

    @property
    def redis_url(self) -> str:
        return self.redis.url

    def start(self) -> None:
        """Raises what `LocalNode.start` raises; then nothing runs."""
        start_together((self.cluster.start, self.fail_over.start), self.close)

    def close(self) -> None:
        """End everything and remove its data."""
        self.cluster.close()
        self.fail_over.close()

    def replace(self, lost: ClusterNode, name: str | None = None) -> ClusterNode:
        """A new node takes the place of one that was forgotten, called `name`. Raises DispatcherError."""
        node = self.cluster.add(name)
        self.nodes[self.nodes.index(lost)] = node
        return node
