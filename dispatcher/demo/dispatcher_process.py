"""A dispatcher in a process of its own, that may be killed and started again."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from types import TracebackType
from typing import Any, Final, Self

import yaml

from dispatcher.errors import DispatcherError
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.nodes.process import GuardedProcess

#: Between two looks whether it leads; a start takes about half a second.
POLL_S: Final = 0.02
START_TIMEOUT_S: Final = 30.0
#: The service's own promise is less than 5 s.
STOP_TIMEOUT_S: Final = 8.0
ANSWER_TIMEOUT_S: Final = 2.0


class DispatcherProcess:
    """`dispatcher run` with this configuration, as a file would have it (without `http`).

    Nothing of it outlives this process, however that ends.
    """

    def __init__(self, configuration: dict[str, Any]) -> None:
        self._process = GuardedProcess("dispatcher")
        self._file = self._process.directory / "dispatcher.yaml"
        (port,) = free_ports(1)
        listen = {"listen": f"{LOOPBACK}:{port}"}
        self._file.write_text(yaml.safe_dump({**configuration, "http": listen}, sort_keys=False))
        self._url = f"http://{LOOPBACK}:{port}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @property
    def pid(self) -> int:
        """The process. Raises DispatcherError when it isn't started."""
        if self._process.pid is None:
            raise DispatcherError("the dispatcher is not running")
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it leads all its lanes.

        Raises DispatcherError with what its log says last when it ends, or doesn't lead in time.
        """
        self.launch()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.leads():
            if not self._process.is_alive():
                raise DispatcherError(f"the dispatcher ended while it was starting: {self._last_words()}")
            if time.monotonic() > deadline:
                raise DispatcherError(f"the dispatcher does not lead its lanes: {self._last_words()}")
            time.sleep(POLL_S)

    def launch(self) -> None:
        """Start it without waiting."""
        command = [sys.executable, "-m", "dispatcher", "run", "-c", str(self._file)]
        self._process.start(command, dict(os.environ))

    def leads(self) -> bool:
        """Whether it says that every lane is led by it."""
        states = self._get("/readyz")
        return bool(states) and all(state.endswith(": leading") for state in states)

    def in_flight(self) -> int:
        """Messages dispatched and not settled, in all lanes; 0 when it doesn't answer."""
        return int(self.metric("dispatcher_messages_in_flight"))

    def metric(self, name: str) -> float:
        """The sum of a metric over all lanes; 0 when it doesn't answer."""
        lines = [line for line in self._get("/metrics") if line.startswith(f"{name}{{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def _get(self, path: str) -> list[str]:
        """The lines of an answer, none when there is no good one."""
        try:
            with self._opener.open(self._url + path, timeout=ANSWER_TIMEOUT_S) as answer:
                return list(answer.read().decode().splitlines())
        except (urllib.error.HTTPError, OSError):
            return []

    def kill9(self) -> None:
        """End it as a crash would; its ledger's process may write what it has got."""
        self._process.crash()

    def stop(self) -> None:
        """End it cleanly."""
        self._process.terminate(STOP_TIMEOUT_S)

    def close(self) -> None:
        """End it in any case and remove its files."""
        self._process.close()

    def log(self) -> str:
        """The end of what it wrote."""
        return self._process.log_tail()

    def _last_words(self) -> str:
        """What went wrong, from the last line of its log."""
        last = (self.log().splitlines() or ["it wrote nothing"])[-1]
        try:
            entry = json.loads(last)
        except ValueError:
            return last
        return str(entry.get("problem") or entry.get("event"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
