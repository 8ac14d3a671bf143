"""The Redis of a run on a cluster, in three ways: who takes the place of a primary that is lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import redis

from dispatcher.nodes import LocalRedis
from dispatcher.nodes.local import LocalNode
from dispatcher.nodes.ports import LOOPBACK
from dispatcher.redis_store.scripts import LaneKeys
from tests.redis_store.cluster_nodes import LocalCluster, ask
from tests.redis_store.sentinel_node import PROMOTED_S, is_in_sync, is_master, watched_master
from tests.waiting import wait_until

#: For a replica to have everything.
SYNC_S: Final = 30.0
#: For others to take a primary for dead. On a busy machine servers stand still for a second, and each time
#: another one would take over, with what it knows by chance.
DOWN_AFTER_MS: Final = 3_000
#: What Sentinel says of a fail-over, and what the replica in a Redis Cluster says of its own.
SWITCHED, ELECTED = "+switch-master", "Failover election won"


class Pair(NamedTuple):
    """Of one lane, or of several."""

    primary: LocalRedis
    replica: LocalRedis  # it has everything
    key: str  # of a lane


class FailOver(ABC):
    """`servers` run, unless one was just lost."""

    servers: list[LocalRedis]
    #: Whether clients can be led back to a primary that goes on beside the replica in its place.
    flips = False
    #: How many faults have had another server take the place of a primary.
    planned = 0

    @abstractmethod
    def start(self) -> None:
        """Raises what `LocalNode.start` raises."""

    @abstractmethod
    def close(self) -> None:
        """End everything and remove its data."""

    @abstractmethod
    def url(self, proxied: str) -> str:
        """What dispatchers are configured with; `proxied` leads to the primary of the moment."""

    @abstractmethod
    def pair(self, prefix: str, lane: str) -> Pair:
        """Wait for a replica of this lane's primary that has everything."""

    @abstractmethod
    def has(self, pair: Pair, prefix: str, lane: str) -> bool:
        """Whether this lane is there, too."""

    @abstractmethod
    def promote(self, pair: Pair) -> None:
        """Returns when the replica has taken the place of its primary."""

    @abstractmethod
    def retire(self, former: LocalRedis) -> None:
        """Another one has its place now."""

    def promotions(self) -> int:
        """How often another server has taken the place of a primary. More than `planned`: without a fault."""
        return self.planned


class Proxied(FailOver):
    """One server, which is reached through proxies. It has a replica only for a fail-over."""

    flips = True

    def __init__(self) -> None:
        self.servers = [LocalRedis()]

    def start(self) -> None:
        self.servers[0].start()

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def url(self, proxied: str) -> str:
        return proxied

    def pair(self, prefix: str, lane: str) -> Pair:
        (primary,) = self.servers
        replica = LocalRedis(config=[f"replicaof {LOOPBACK} {urlsplit(primary.url).port}"])
        self.servers.append(replica)
        replica.start()
        wait_until(lambda: is_in_sync(replica), SYNC_S, "the replica")
        return Pair(primary, replica, "")

    def has(self, pair: Pair, prefix: str, lane: str) -> bool:
        return True

    def promote(self, pair: Pair) -> None:
        ask(pair.replica, "REPLICAOF", "NO", "ONE")
        pair.replica.config.clear()  # of the next start

    def retire(self, former: LocalRedis) -> None:
        self.servers.remove(former)
        former.close()


class Watched(FailOver):
    """A master and a replica, which Sentinel watches. One that was lost comes back as the replica."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self.servers = []
        self._url = ""

    def start(self) -> None:
        watched = self._running.enter_context(watched_master(DOWN_AFTER_MS))
        self.servers, self._url = [watched.master, watched.replica], watched.url
        self._sentinel = watched.sentinel

    def close(self) -> None:
        self._running.close()

    def url(self, proxied: str) -> str:
        return self._url

    def pair(self, prefix: str, lane: str) -> Pair:
        one, other = self.servers
        wait_until(lambda: _follows(one) != _follows(other), PROMOTED_S, "a master and its replica")
        return Pair(other, one, "") if _follows(one) else Pair(one, other, "")

    def has(self, pair: Pair, prefix: str, lane: str) -> bool:
        return True

    def promote(self, pair: Pair) -> None:
        wait_until(lambda: is_master(pair.replica), PROMOTED_S, "the replica to be the master")
        self.planned += 1

    def retire(self, former: LocalRedis) -> None:
        former.start()

    def promotions(self) -> int:
        return times_said(SWITCHED, [self._sentinel])


class Sharded(FailOver):
    """A Redis Cluster, where each lane is on one of three primaries."""

    def __init__(self) -> None:
        self._cluster = LocalCluster(DOWN_AFTER_MS)
        self.servers = self._cluster.nodes

    def start(self) -> None:
        self._cluster.__enter__()

    def close(self) -> None:
        self._cluster.__exit__()

    def url(self, proxied: str) -> str:
        return self._cluster.url()

    def pair(self, prefix: str, lane: str) -> Pair:
        wait_until(self._is_ready, PROMOTED_S, "the cluster")
        key = LaneKeys.of(prefix, lane).meta
        primary = self._cluster.primary(key)
        return Pair(primary, self._cluster.replica_of(primary), key)

    def _is_ready(self) -> bool:
        with suppress(redis.RedisError):
            return self._cluster.is_ready()
        return False

    def has(self, pair: Pair, prefix: str, lane: str) -> bool:
        return self._cluster.primary(LaneKeys.of(prefix, lane).meta) is pair.primary

    def promote(self, pair: Pair) -> None:
        self._cluster.primary(pair.key, pair.primary)
        self.planned += 1

    def retire(self, former: LocalRedis) -> None:
        former.start()

    def promotions(self) -> int:
        return times_said(ELECTED, self.servers)


def times_said(words: str, servers: Iterable[LocalNode]) -> int:
    """How often these servers have said so."""
    logs = [log.read_text(errors="replace") for server in servers for log in server.logs()]
    return sum(log.count(words) for log in logs)


def _follows(server: LocalRedis) -> bool:
    """It is a replica in sync. Sentinel ends all connections of a server whose role it changes."""
    with suppress(redis.RedisError):
        return is_in_sync(server)
    return False


#: By what `--redis` says.
WAYS: Final[dict[str, type[FailOver]]] = {"proxies": Proxied, "sentinel": Watched, "cluster": Sharded}
