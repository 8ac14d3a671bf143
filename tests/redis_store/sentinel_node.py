"""A private Redis Sentinel that watches one private master."""

from __future__ import annotations

import os
from collections.abc import Iterable
from urllib.parse import urlsplit

from dispatcher.nodes.installed import redis_server
from dispatcher.nodes.local import LocalNode
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.nodes.process import GuardedProcess
from dispatcher.nodes.readiness import redis_answers

SERVICE = "main"
DOWN_AFTER_MS = 500


class LocalSentinel(LocalNode):
    """It alone decides on a fail-over."""

    name = "sentinel"
    stop_timeout_s = 10.0

    def __init__(self, master_url: str, config: Iterable[str] = (), *, tls: bool = False) -> None:
        super().__init__()
        self._master_port = urlsplit(master_url).port
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
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} 3000",
        ]
        (process.directory / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def _command(self, process: GuardedProcess) -> tuple[list[str], dict[str, str]]:
        return [str(redis_server()), str(process.directory / "sentinel.conf"), "--sentinel"], dict(os.environ)

    def _answers(self) -> bool:
        return redis_answers(f"redis://{LOOPBACK}:{self._plain}")
