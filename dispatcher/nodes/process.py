"""A server as a guarded child process with a directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from dispatcher.errors import DispatcherError
from dispatcher.nodes import guard

#: Between two looks at a server that is coming up or going down.
POLL_S = 0.02
LOG_TAIL_CHARACTERS = 2000


class GuardedProcess:
    """Starts, stops and kills one server; `close`, or the end of this process, ends it and its directory.

    Thread-safe. The guard is a process of its own, see `dispatcher.nodes.guard`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.directory = Path(tempfile.mkdtemp(prefix=f"dispatcher-{name}-"))
        self.pid: int | None = None
        self._guard: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def start(self, argv: list[str], environment: dict[str, str]) -> None:
        """Start the server; argv and environment are those of the first start for the whole life."""
        if self._guard is None:
            command = [sys.executable, "-I", guard.__file__, str(os.getpid()), str(self.directory), *argv]
            self._guard = subprocess.Popen(
                command, env=environment, text=True, bufsize=1, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        self.pid = int(self._ask("start"))

    def is_alive(self) -> bool:
        return self._guard is not None and self._ask("alive") == "yes"

    def cpu_s(self) -> float:
        """CPU time that the server and all that it has started have used so far, as far as these run."""
        pid = self.pid
        if pid is None:
            return 0.0
        ticks = sum(map(_cpu_ticks, (pid, *guard.descendants(pid))))
        return ticks / os.sysconf("SC_CLK_TCK")

    def terminate(self, timeout_s: float) -> None:
        """Let the server end by itself (SIGTERM), kill it after `timeout_s`; its data stays."""
        if self._guard is None:
            return
        self.ask_to_end()
        deadline = time.monotonic() + timeout_s
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self.kill()

    def ask_to_end(self) -> None:
        """Send the server SIGTERM."""
        if self._guard is not None:
            self._ask("terminate")

    def kill(self) -> None:
        """kill -9 the server and everything it started; its data stays."""
        if self._guard is not None:
            self._ask("kill")
            self.pid = None

    def crash(self) -> None:
        """kill -9 the server alone, and wait until the processes that it started have ended by themselves, as
        after a crash; those that take too long are killed."""
        if self._guard is not None:
            self._ask("crash")
            self.pid = None

    def close(self) -> None:
        """End everything and remove the directory; returns when that is done."""
        with self._lock:
            started, self._guard, self.pid = self._guard, None, None
        if started is None:
            shutil.rmtree(self.directory, ignore_errors=True)
            return
        with started:  # closes its pipes, which is what ends it, and waits
            pass

    def logs(self) -> list[Path]:
        """The files that the server writes its log to; they go with the directory."""
        logs = [self.directory / "output.log", *sorted((self.directory / "log").glob("*.log"))]
        return [log for log in logs if log.is_file()]

    def log_tail(self) -> str:
        """The end of what the server wrote."""
        text = "\n".join(log.read_text(errors="replace") for log in self.logs())
        return text[-LOG_TAIL_CHARACTERS:].strip()

    def _ask(self, command: str) -> str:
        with self._lock:
            started = self._guard
            if started is None or started.stdin is None or started.stdout is None:
                raise DispatcherError(f"{self.name} was closed")
            try:
                started.stdin.write(f"{command}\n")
                answer = started.stdout.readline().strip()
            except BrokenPipeError:
                answer = ""
        if not answer:
            raise DispatcherError(f"the guard process of {self.name} is gone")
        return answer


def _cpu_ticks(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # it has gone
        return 0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return int(user) + int(system)
