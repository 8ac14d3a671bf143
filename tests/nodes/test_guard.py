"""Nothing of a server outlives the process that started it, whatever ends that process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dispatcher.nodes.guard import descendants
from dispatcher.nodes.process import GuardedProcess
from tests.waiting import wait_until

_OWNER = """
import os, sys, threading
from dispatcher.nodes import LocalRedis
node = LocalRedis()
node.start()
forked = os.fork() if "fork" in sys.argv else os.getpid()
if forked == 0:
    threading.Event().wait()  # holds a copy of the pipe to the guard
print(forked, node._process.directory, flush=True)
sys.stdin.readline()
if "raise" in sys.argv:
    raise SystemError("as any bug would")
"""


def _is_running(pid: int) -> bool:
    """Whether the process runs; one that only waits for its parent's attention does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before or while it was read
        return False


class Owner:
    """A process that has started a Redis, and perhaps forked."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.stdin = process.stdin
        pid, directory = process.stdout.readline().split()
        self.forked = int(pid)  # itself, if it did not fork
        self.directory = Path(directory)
        self.started = [pid for pid in descendants(process.pid) if pid != self.forked]
        assert len(self.started) == 2, "the guard and its Redis"

    def assert_all_ends(self) -> None:
        wait_until(lambda: not any(_is_running(pid) for pid in self.started))
        assert not self.directory.exists()


@contextmanager
def _owner(*arguments: str) -> Iterator[Owner]:
    process = subprocess.Popen(
        [sys.executable, "-c", _OWNER, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with process:
        try:
            owner = Owner(process)
            try:
                yield owner
            finally:
                if owner.forked != process.pid:
                    os.kill(owner.forked, signal.SIGKILL)
        finally:
            process.kill()


def test_after_a_crash_what_the_server_had_started_may_end_by_itself(tmp_path: Path) -> None:
    """A kill of everything ends that as well."""
    written = tmp_path / "written"
    heir = f"import sys; sys.stdin.read(); open({str(written)!r}, 'a').write('at its end')"
    server = (
        "import subprocess, sys, time\n"
        f"heir = subprocess.Popen([sys.executable, '-c', {heir!r}], stdin=subprocess.PIPE)\n"
        "print('started', flush=True)\ntime.sleep(100)"
    )
    process = GuardedProcess("server")
    try:
        for end in (process.kill, process.crash):
            process.start([sys.executable, "-c", server], dict(os.environ))
            wait_until(lambda: "started" in process.log_tail())
            assert process.pid is not None
            end()
            assert written.exists() == (end == process.crash)
            assert not process.is_alive()
            (process.directory / "output.log").write_text("")
    finally:
        process.close()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_server_and_directory_go_when_a_signal_ends_the_owner(ending: signal.Signals) -> None:
    with _owner() as owner:
        owner.process.send_signal(ending)
        owner.assert_all_ends()


def test_server_goes_when_an_exception_ends_the_owner() -> None:
    with _owner("raise") as owner:
        owner.stdin.write("\n")
        owner.stdin.flush()
        owner.assert_all_ends()


def test_server_goes_although_a_fork_of_the_owner_lives_on() -> None:
    with _owner("fork") as owner:
        owner.process.kill()
        owner.assert_all_ends()
        assert _is_running(owner.forked)
