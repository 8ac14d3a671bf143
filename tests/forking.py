"""Processes of a program that is imported once: to import it is most of what a start costs.

`start(…)` has a process that has imported the program, and does nothing else, fork one that runs it, with
arguments, environment and files of its own. What it does then is what `python -m PROGRAM` does.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).parents[1]
#: What programs import when they have looked at their arguments.
_LATER: Final = {
    "dispatcher": (
        "dispatcher.cli.run", "dispatcher.logs", "dispatcher.service.process", "dispatcher.service.reloading",
        "dispatcher.service.workers", "dispatcher.settings.file", "uvloop",
    ),
}  # fmt: skip
_MESSAGE_BYTES: Final = 1 << 17
_PDEATHSIG: Final = 1


class Forked:
    """As subprocess.Popen has it: pid, and what one may do with the process and ask of it."""

    def __init__(self, server: _Server, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and self._has_ended(timeout_s):
            self.returncode = self._server.ask({"ended": self.pid})
        return self.returncode

    def _has_ended(self, timeout_s: float | None) -> bool:
        """It keeps its id until its parent is asked for its end."""
        file, looked = os.pidfd_open(self.pid), select.poll()
        try:
            looked.register(file, select.POLLIN)
            return bool(looked.poll(None if timeout_s is None else 1_000 * timeout_s))
        finally:
            os.close(file)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """The process that has imported a program. It and all that it has forked end with this one."""

    def __init__(self, program: str) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forking", str(theirs.fileno()), program],
                cwd=ROOT, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def ask(self, question: Mapping[str, object], *files: int) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(question).encode()], files)
            answer = self._socket.recv(_MESSAGE_BYTES)
        assert answer, f"what has imported the program has ended: {self._process.poll()}"
        return int(answer)


_server = functools.cache(_Server)


def start(program: str, arguments: list[str], output: IO[bytes]) -> Forked:
    """`python -m PROGRAM ARGUMENTS`, whose lines go to that file."""
    server = _server(program)
    question = {"arguments": arguments, "environment": dict(os.environ)}
    return Forked(server, server.ask(question, output.fileno()))


def _serve(requests: socket.socket) -> list[str] | None:
    """In each process that was forked: what its arguments are. None: nobody asks any more."""
    living: set[int] = set()
    # Ctrl-C is for the others of a terminal: nothing is forked, and nothing killed, because of it.
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        content, files, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 1)
        if not content:
            for pid in living:
                os.kill(pid, signal.SIGKILL)
            return None
        question = json.loads(content)
        if (ended := question.get("ended")) is not None:
            _, status = os.waitpid(ended, 0)
            living.remove(ended)
            requests.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGINT, on_interrupt)
            _become(requests, files[0], question["environment"])
            return list(question["arguments"])
        living.add(pid)
        os.close(files[0])
        requests.send(str(pid).encode())


def _become(requests: socket.socket, output: int, environment: dict[str, str]) -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    requests.close()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)


def _main(number: str, program: str) -> None:
    for name in (program, *_LATER.get(program, ())):
        importlib.import_module(name)
    if "__path__" not in vars(sys.modules[program]):
        del sys.modules[program]  # it is run as `__main__`
    arguments = _serve(socket.socket(fileno=int(number)))
    if arguments is not None:
        sys.argv[1:] = arguments
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
