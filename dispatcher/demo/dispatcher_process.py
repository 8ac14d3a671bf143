"""A dispatcher in a process of its own, that may be killed and started again."""

from __future__ import annotations

import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from types import TracebackType
from typing import Any, Final, Self

import yaml

from dispatcher.demo.patience import stop_patiently, wait_while_it_goes_on, whole_cpu_s
from dispatcher.errors import DispatcherError
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.nodes.process import GuardedProcess

ANSWER_TIMEOUT_S: Final = 3.0


class DispatcherProcess:
    """`dispatcher run` with this configuration, as a file would have it (without `http`).

    Nothing of it outlives this process, however that ends.
    """

    #: Python's module that runs it, and what that gets before the command.
    program: tuple[str, ...] = ("dispatcher",)

    def __init__(self, configuration: dict[str, Any]) -> None:
        self._process = GuardedProcess("dispatcher")
        self.file = self._process.directory / "dispatcher.yaml"
        (port,) = free_ports(1)
        listen = {"listen": f"{LOOPBACK}:{port}"}
        self.file.write_text(yaml.safe_dump({**configuration, "http": listen}, sort_keys=False))
        self._url = f"http://{LOOPBACK}:{port}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def cpu_s(self) -> float:
        """CPU time of the process and of the ledger's, if it has one."""
        return self._process.cpu_s()

    @property
    def pid(self) -> int:
        """The process. Raises DispatcherError when it isn't started."""
        if self._process.pid is None:
            raise DispatcherError("the dispatcher is not running")
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it leads all its lanes.

        Raises DispatcherError with what its log says last when it ends, or doesn't get on with it.
        """
        self.launch()

        def is_decided() -> bool:
            return self.leads() or not self._process.is_alive()

        if not wait_while_it_goes_on(is_decided, self.signs):
            raise DispatcherError(f"the dispatcher does not lead its lanes: {self.last_words()}")
        if not self._process.is_alive():
            raise DispatcherError(f"the dispatcher ended while it was starting: {self.last_words()}")

    def launch(self) -> None:
        """Start it without waiting."""
        command = [sys.executable, "-m", *self.program, "run", "-c", str(self.file)]
        self._process.start(command, dict(os.environ))

    def leads(self) -> bool:
        """Whether it says that every lane is led by it."""
        states = self._get("/readyz")
        return bool(states) and all(state.endswith(": leading") for state in states)

    def led(self) -> int:
        """How many lanes it says that it leads."""
        return sum(state.endswith(": leading") for state in self._get("/readyz"))

    def signs(self) -> object:
        """What changes while it gets on with its start, or with what it has to do before it ends."""
        states = self._get("/readyz")
        # To answer costs time as well, so this only counts before it can.
        return (self._process.pid, states, self.log(), None if states else whole_cpu_s(self._process))

    def unfinished(self) -> int | None:
        """Originals that it has and has not acked, in all lanes; None when it leads none or doesn't
        answer."""
        lanes = self.lanes()
        if not lanes or any(lane["status"] is None for lane in lanes):
            return None
        rows = [row for lane in lanes for row in lane["status"]["inbound"]]
        return sum(int(row["held"] + row["in_flight"] + row["settled_unacked"]) for row in rows)

    def lanes(self) -> list[dict[str, Any]]:
        """What its API says of its lanes; nothing when it doesn't answer."""
        text = "".join(self._get("/api/lanes"))
        return list(json.loads(text)["lanes"]) if text else []

    def metric(self, name: str) -> float:
        """The sum of a metric over all lanes; 0 when it doesn't answer."""
        lines = [line for line in self._get("/metrics") if line.startswith(f"{name}{{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def _get(self, path: str) -> list[str]:
        """The lines of an answer, none when there is no good one."""
        try:
            with self._opener.open(self._url + path, timeout=ANSWER_TIMEOUT_S) as answer:
                return list(answer.read().decode().splitlines())
        except urllib.error.HTTPError as refusal:  # of /readyz: the reasons why it is not ready
            with refusal:
                return list(refusal.read().decode().splitlines()) if refusal.code == 503 else []
        except (OSError, http.client.HTTPException):
            return []

    def kill9(self) -> None:
        """End it as a crash would; its ledger's process may write what it has got."""
        self._process.crash()

    def stop(self) -> None:
        """End it cleanly; it is killed when it does not get on with that."""
        stop_patiently(self._process)

    def close(self) -> None:
        """End it in any case and remove its files."""
        self._process.close()

    def log(self) -> str:
        """The end of what it wrote."""
        return self._process.log_tail()

    def last_words(self) -> str:
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
