"""A private Redis Cluster: three primaries with a replica each."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Final, Self

import redis

from dispatcher.nodes.installed import redis_server
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.redis_store.cluster import primary_in, slot_of
from tests.waiting import wait_until

PRIMARIES: Final = 3
NODE_TIMEOUT_MS: Final = 1_000
MANUAL_FAIL_OVER_S: Final = 6.0


def _may_choose_bus_port() -> bool:
    """The port over which nodes talk to each other. Redis 6.2 takes its own plus 10,000, and no other."""
    version = subprocess.run([str(redis_server()), "--version"], check=True, capture_output=True, text=True)
    return " v=6." not in version.stdout


class LocalCluster:
    """Nodes on loopback; `with LocalCluster() as cluster`: it is up, and every replica in sync."""

    def __init__(self, node_timeout_ms: int = NODE_TIMEOUT_MS) -> None:
        self._running = contextlib.ExitStack()
        self._node_timeout_ms = node_timeout_ms
        self.nodes: list[LocalRedis] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as starting:
            may_choose = _may_choose_bus_port()
            for _ in range(2 * PRIMARIES):
                config = [
                    "cluster-enabled yes",
                    *([f"cluster-port {free_ports(1)[0]}"] if may_choose else []),
                    f"cluster-node-timeout {self._node_timeout_ms}",
                    "cluster-replica-validity-factor 0",  # also one that was cut off for long is promoted
                    "repl-diskless-sync-delay 0",
                ]
                self.nodes.append(starting.enter_context(LocalRedis(config=config)))
            self._running = starting.pop_all()
        create = [str(redis_server().with_name("redis-cli")), "--cluster", "create"]
        places = [f"{LOOPBACK}:{port_of(node)}" for node in self.nodes]
        subprocess.run(
            [*create, *places, "--cluster-replicas", "1", "--cluster-yes"], check=True, capture_output=True
        )
        wait_until(self.is_ready, what="the cluster")
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def url(self, *nodes: LocalRedis) -> str:
        """Of these nodes, or of all."""
        places = [f"{LOOPBACK}:{port_of(node)}" for node in nodes or self.nodes]
        return f"redis+cluster://{','.join(places)}"

    def primary(self, key: str, but: LocalRedis | None = None) -> LocalRedis:
        """The node that has the key, as soon as the nodes that run say so; not `but`."""
        return wait_until(lambda: self._primary(slot_of(key), but), what="a primary")

    def replica_of(self, primary: LocalRedis) -> LocalRedis:
        port = port_of(primary)
        return next(
            node
            for node in self.nodes
            if node.pid and ask(node, "INFO", "replication").get("master_port") == port
        )

    def fail_over(self, primary: LocalRedis) -> None:
        """Have its replica replace it, as operators do. Redis gives up a fail-over that is not done in five
        seconds, and says nothing: then it is asked again."""
        replica, asked_at = self.replica_of(primary), -math.inf

        def is_done() -> bool:
            nonlocal asked_at
            if ask(replica, "INFO", "replication")["role"] == "master":
                return True
            if time.monotonic() - asked_at > MANUAL_FAIL_OVER_S:
                asked_at = time.monotonic()
                with contextlib.suppress(redis.ResponseError):  # it takes its primary for dead, for a moment
                    ask(replica, "CLUSTER FAILOVER")
            return False

        wait_until(is_done, what="a replica that replaced its primary")

    def others(self, node: LocalRedis) -> list[LocalRedis]:
        return [other for other in self.nodes if other is not node]

    def _primary(self, slot: int, but: LocalRedis | None) -> LocalRedis | None:
        for node in self.nodes:
            with contextlib.suppress(redis.RedisError):
                found = primary_in(ask(node, "CLUSTER SLOTS"), slot)
                if node is not but and found is not None and found[1] == port_of(node):
                    return node
        return None

    def is_ready(self) -> bool:
        """Every node is well. One that was replaced while it was away takes itself for a primary until the
        others tell it."""
        facts = [ask(node, "INFO", "replication") for node in self.nodes]
        in_sync = [each for each in facts if each.get("master_link_status") == "up"]
        return len(in_sync) == len(self.nodes) - PRIMARIES and all(
            ask(node, "CLUSTER INFO")["cluster_state"] == "ok" for node in self.nodes
        )


def port_of(node: LocalRedis) -> int:
    return int(node.url.rpartition(":")[2].partition("/")[0])


def ask(node: LocalRedis, *command: Any) -> Any:
    with redis.Redis.from_url(node.url) as client:
        return client.execute_command(*command)


@contextlib.contextmanager
def stopped(node: LocalRedis) -> Iterator[None]:
    """It stands still, and misses what happens meanwhile."""
    assert node.pid is not None
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)
