"""The ledger's benchmark runs with one command. What it measures says nothing beside other tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_command_measures_and_says_so() -> None:
    command = [sys.executable, "-m", "bench.ledger", "--messages", "3200", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == ""
    found = re.match(r"the ledger takes ([0-9.]+) µs of the dispatcher's CPU a message", done.stdout)
    assert found is not None, done.stdout
    assert done.returncode == (float(found[1]) > 3.0)
