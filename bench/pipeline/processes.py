"""Runs a command, and says how long it and its Java process took, of CPU too, and their most memory."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

#: Of Python: the dispatcher's command line.
PROGRAM: Final = "from dispatcher.cli import main; main()"
_LOOK_EVERY_S: Final = 0.25
#: A stage that is over, without how long the others will take.
_STAGE: Final = re.compile(r"([A-Za-z -]+: [0-9.]+ s)(?:, about \d+ (?:s|min) more)?")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """`java`: the command line of its Spark. `peak_bytes`: resident, of all its processes together.
    `cpu_seconds`: of all of them, user and system, but of the last quarter of a second.
    `stderr`: what it said of its stages; `words`: all that it said.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    java: str
    stderr: str
    words: str


def spend(command: Sequence[str], expected: Sequence[int] = (0,), **environment: str) -> Spent:
    """Run it to its end, with these variables besides its own. Ends the program with the command's words if
    it fails."""
    peaks: dict[int, int] = {}
    worked: dict[int, float] = {}
    java = ""
    with tempfile.TemporaryFile("w+") as log:
        began_s = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment)
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_EVERY_S)
                    break
                for child in _with_children(process.pid):
                    peaks[child] = max(_peak(child), peaks.get(child, 0))
                    worked[child] = _worked_s(child) or worked.get(child, 0)
                    java = java or _java(child)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        seconds = time.monotonic() - began_s
        log.seek(0)
        text = log.read()
    if process.returncode not in expected:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}: {text[-2_000:]}")
    stages = [found[1] for line in text.splitlines() if (found := _STAGE.fullmatch(line))]
    return Spent(seconds, sum(worked.values()), sum(peaks.values()), java, "\n".join(stages), text)


def _with_children(root: int) -> list[int]:
    found = [root]
    for pid in found:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def _peak(pid: int) -> int:
    with contextlib.suppress(OSError):
        if match := re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()):
            return int(match[1]) * 1_024
    return 0


def _worked_s(pid: int) -> float:
    with contextlib.suppress(OSError):
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / _TICKS_PER_S
    return 0


def _java(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[0].endswith(b"java") and b"org.apache.spark.launcher.Main" not in words:
            return b" ".join(words).decode(errors="replace")
    return ""
