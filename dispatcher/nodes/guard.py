"""A process between us and a server: nothing of the server outlives the process that asked for it.

Run as a script, it starts one server on command and adopts whatever that server leaves behind (RabbitMQ
starts a port mapper as a daemon). When its standard input ends or its parent dies, however that happens,
it kills all of them and removes the server's directory. So a clean exit, an exception, SIGTERM and
kill -9 of the parent are one case, and no signal handler is needed anywhere.

Commands on standard input, one answer line each: `start` → pid, `alive` → `yes` or `no`, `terminate` →
`sent`, `kill` → `dead` (every descendant is gone), `crash` → `dead` (the server was killed; the processes
that it had started could end by themselves, until they took too long).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
#: Between two rounds of killing; the kernel needs about this long to take a large process down.
KILL_ROUND_S = 0.005
#: How long the child processes of a killed server may go on writing.
CRASH_S = 10.0


class Guard:
    """The server of one directory and everything it started."""

    def __init__(self, argv: list[str], log: Path) -> None:
        self._argv = argv
        self._log = log
        self._server: subprocess.Popen[bytes] | None = None

    def obey(self, command: str) -> str:
        """Carry out one command and return its answer."""
        match command:
            case "start":
                return str(self._start())
            case "alive":
                return "yes" if self._is_alive() else "no"
            case "terminate":
                if self._server is not None and self._is_alive():
                    self._server.terminate()
                return "sent"
            case "kill":
                self.kill_all()
                return "dead"
            case "crash":
                self._crash()
                return "dead"
        return f"unknown command {command!r}"

    def _start(self) -> int:
        self.kill_all()
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return self._server.pid

    def _is_alive(self) -> bool:
        return self._server is not None and self._server.poll() is None

    def _crash(self) -> None:
        if self._server is not None and self._is_alive():
            self._server.kill()
        deadline = time.monotonic() + CRASH_S
        while descendants(os.getpid()) and time.monotonic() < deadline:
            self._reap()
            time.sleep(KILL_ROUND_S)
        self.kill_all()

    def kill_all(self) -> None:
        """Kill every descendant and wait until none is left. All are stopped first: else one would live for a
        moment in which it sees that another is gone, and act upon that."""
        while victims := descendants(os.getpid()):
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in victims:
                    with contextlib.suppress(ProcessLookupError):  # it was faster
                        os.kill(pid, number)
            self._reap()
            time.sleep(KILL_ROUND_S)
        self._server = None

    def _reap(self) -> None:
        if self._server is not None:
            self._server.poll()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def descendants(root: int) -> list[int]:
    """Every process below `root`, zombies included."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := parent_of(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def parent_of(pid: int) -> int | None:
    """The parent's pid, None when the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name stands in parentheses and may hold anything, even ')'.
    return int(stat.rpartition(")")[2].split()[1])


def commands_until_parent_ends(parent: int) -> list[str] | None:
    """Wait for lines on standard input; None once it ended or the parent is dead."""
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    try:
        # A child that the parent forked may hold our input open, so its death is watched for as well.
        watched = os.pidfd_open(parent)
    except OSError:
        return None
    try:
        poll.register(watched, select.POLLIN)
        ready = dict(poll.poll())
    finally:
        os.close(watched)
    if watched in ready or os.getppid() != parent:
        return None
    received = os.read(0, 65536)
    return received.decode().splitlines() if received else None


def main(arguments: list[str]) -> None:
    """`guard.py PARENT_PID DIRECTORY COMMAND…`."""
    parent, directory, argv = int(arguments[0]), Path(arguments[1]), arguments[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Signals are the parent's business; we hear of it when it ends. Not SIG_IGN: the server would inherit it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    guard = Guard(argv, directory / "output.log")
    try:
        while (commands := commands_until_parent_ends(parent)) is not None:
            for command in commands:
                # Nothing is buffered: Python would try once more at its end, and complain.
                os.write(1, f"{guard.obey(command)}\n".encode())
    except BrokenPipeError:
        pass  # the parent died while we answered
    finally:
        guard.kill_all()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
