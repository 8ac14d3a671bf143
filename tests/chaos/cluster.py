"""The servers of a run on a cluster: three RabbitMQ nodes, and a Redis whose replica takes its place."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from dispatcher.nodes import LocalCluster, LocalRedis
from dispatcher.nodes.local_cluster import ClusterNode
from dispatcher.nodes.ports import LOOPBACK
from dispatcher.nodes.servers import start_together
from tests.redis_store.cluster_nodes import ask
from tests.redis_store.sentinel_node import is_in_sync
from tests.waiting import wait_until

#: Erlang's net_ticktime: others give up a node that stands still between three and five quarters of it later.
TICKTIME_S = 6
#: For a replica to have everything.
SYNC_S = 30.0


class ClusterServers:
    """What `PrivateServers` are for other runs. `redis` is the present primary."""

    def __init__(self, partition_handling: str) -> None:
        self.cluster = LocalCluster(ticktime_s=TICKTIME_S, partition_handling=partition_handling)
        self.nodes = [*self.cluster.nodes]  # in the order of the proxies
        self.redis = LocalRedis()

    @property
    def rabbitmq(self) -> ClusterNode:
        """The first node."""
        return self.nodes[0]

    @property
    def amqp_url(self) -> str:
        return self.rabbitmq.amqp_url

    @property
    def redis_url(self) -> str:
        return self.redis.url

    def start(self) -> None:
        """Raises what `LocalNode.start` raises; then nothing runs."""
        start_together((self.cluster.start, self.redis.start), self.close)

    def close(self) -> None:
        """End everything and remove its data."""
        self.cluster.close()
        self.redis.close()

    def replace(self, lost: ClusterNode, name: str | None = None) -> ClusterNode:
        """A new node takes the place of one that was forgotten, called `name`. Raises DispatcherError."""
        node = self.cluster.add(name)
        self.nodes[self.nodes.index(lost)] = node
        return node

    def promote_a_replica(self) -> float:
        """Kill the primary once a replica has what it had a moment ago, and have that in its place.

        Returns when the primary was killed: the last writes may be lost.
        """
        replica = LocalRedis(config=[f"replicaof {LOOPBACK} {urlsplit(self.redis.url).port}"])
        replica.start()
        try:
            wait_until(lambda: is_in_sync(replica), SYNC_S, "the replica")
            killed_at = time.monotonic()
            self.redis.kill9()
            ask(replica, "REPLICAOF", "NO", "ONE")
        except BaseException:
            replica.close()
            raise
        former, self.redis = self.redis, replica
        replica.config.clear()  # of the next start
        former.close()
        return killed_at
