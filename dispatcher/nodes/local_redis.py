"""A private Redis: own port, own data directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from dispatcher.errors import DispatcherError
from dispatcher.nodes.installed import redis_server
from dispatcher.nodes.local import LocalNode
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.nodes.process import GuardedProcess
from dispatcher.nodes.readiness import redis_answers


class LocalRedis(LocalNode):
    """One Redis server; `config` are more lines for its redis.conf.

    With `append_only` a killed server comes back with everything it had answered for, without it with
    what the last SAVE wrote. A change of either counts at the next `start`.
    """

    name = "redis"
    stop_timeout_s = 10.0

    def __init__(self, append_only: bool = True, config: Iterable[str] = ()) -> None:
        super().__init__()
        self.append_only = append_only
        self.config = list(config)
        self._port = 0

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self._port}/0"

    @property
    def data(self) -> Path:
        """The folder with its data, from the first `start` on."""
        if self._process is None:
            raise DispatcherError(f"{self.name} was not started")
        return self._process.directory / "data"

    def wipe(self) -> None:
        """Remove the data of a stopped server: it comes back empty."""
        if self._process is not None:
            shutil.rmtree(self.data)
            self.data.mkdir()

    def _lay_out(self, process: GuardedProcess) -> None:
        (self._port,) = free_ports(1)
        (process.directory / "data").mkdir()

    def _command(self, process: GuardedProcess) -> tuple[list[str], dict[str, str]]:
        lines = [
            f"bind {LOOPBACK}",
            f"port {self._port}",
            f"dir {process.directory / 'data'}",
            f"appendonly {'yes' if self.append_only else 'no'}",
            "maxmemory-policy noeviction",
            'save ""',  # only an explicit SAVE writes a snapshot
            *self.config,
        ]
        config = process.directory / "redis.conf"
        config.write_text("\n".join(lines) + "\n")
        return [str(redis_server()), str(config)], dict(os.environ)

    def _answers(self) -> bool:
        return redis_answers(self.url)
