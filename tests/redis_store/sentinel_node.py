"""A private Redis Sentinel that watches one private master, and a master with its replica."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import redis

from dispatcher.nodes.installed import redis_server
from dispatcher.nodes.local import LocalNode
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.nodes.process import GuardedProcess
from dispatcher.nodes.readiness import redis_answers
from tests.waiting import wait_until

SERVICE = "main"
DOWN_AFTER_MS = 500
#: A Sentinel that was kept from running for two seconds does nothing for the next 30 (TILT).
PROMOTED_S = 120.0


class LocalSentinel(LocalNode):
    """It alone decides on a fail-over."""

    name = "sentinel"
    stop_timeout_s = 10.0

    def __init__(
        self,
        master_url: str,
        config: Iterable[str] = (),
        *,
        tls: bool = False,
        down_after_ms: int = DOWN_AFTER_MS,
    ) -> None:
        super().__init__()
        self._master_port = urlsplit(master_url).port
        self._down_after_ms = down_after_ms
        self._config, self._tls = tuple(config), tls
        self.port = 0

    def _lay_out(self, process: GuardedProcess) -> None:
        self.port, plain = free_ports(2)
        self._plain = self.port if not self._tls else plain
        lines = [
            f"bind {LOOPBACK}",
            *((f"port {plain}", f"tls-port {self.port}") if self._tls else (f"port {self.port}",)),
            f"dir {process.directory}",
            *self._config,
            f"sentinel monitor {SERVICE} {LOOPBACK} {self._master_port} 1",
            f"sentinel down-after-milliseconds {SERVICE} {self._down_after_ms}",
            f"sentinel failover-timeout {SERVICE} 3000",
        ]
        (process.directory / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def _command(self, process: GuardedProcess) -> tuple[list[str], dict[str, str]]:
        return [str(redis_server()), str(process.directory / "sentinel.conf"), "--sentinel"], dict(os.environ)

    def _answers(self) -> bool:
        return redis_answers(f"redis://{LOOPBACK}:{self._plain}")


class Watched(NamedTuple):
    """A master, its replica and a Sentinel."""

    master: LocalRedis
    replica: LocalRedis
    sentinel: LocalSentinel

    @property
    def url(self) -> str:
        """The first Sentinel is down."""
        return f"redis+sentinel://{LOOPBACK}:{free_ports(1)[0]},{LOOPBACK}:{self.sentinel.port}/{SERVICE}"


@contextlib.contextmanager
def watched_master(down_after_ms: int = DOWN_AFTER_MS) -> Iterator[Watched]:
    """All of it runs, and the replica is in sync."""
    with LocalRedis() as master:
        port = urlsplit(master.url).port
        with (
            LocalRedis(config=[f"replicaof {LOOPBACK} {port}"]) as replica,
            LocalSentinel(master.url, down_after_ms=down_after_ms) as sentinel,
        ):
            with redis.Redis(host=LOOPBACK, port=sentinel.port) as client:
                wait_until(lambda: len(client.sentinel_slaves(SERVICE)) == 1)
                wait_until(lambda: is_in_sync(replica))
            yield Watched(master, replica, sentinel)


def is_in_sync(replica: LocalRedis) -> bool:
    with redis.Redis.from_url(replica.url) as client:
        return bool(client.info("replication").get("master_link_status") == "up")


def is_master(server: LocalRedis) -> bool:
    with redis.Redis.from_url(server.url) as client:
        try:
            return bool(client.info("replication")["role"] == "master")
        except redis.ConnectionError:  # Sentinel ends all connections of a server whose role it changes
            return False
