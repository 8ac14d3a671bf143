"""The benchmark of traces runs with one command. What it measures says nothing beside other tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_command_measures_and_says_so() -> None:
    command = [sys.executable, "-m", "bench.traces", "--messages", "640", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 0)
    cost = {line[:24].strip(): float(line.split()[-2]) for line in done.stdout.splitlines()[1:]}
    assert len(cost) == 7
    assert cost["off"] < cost["sample 1"]
