"""How soon a dispatcher leads is measured with one command, and bounds that don't hold are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.start import START_S_MAX, STATUS_S_MAX, Started, exceeded
from dispatcher.nodes import Servers

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_command_measures_and_says_so(servers: Servers, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    small = ("--groups", "2000", "--rounds", "1", "--json", str(file))
    ended = subprocess.run(
        [sys.executable, "-m", "bench.start", *small], cwd=ROOT, env=servers.as_environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    rows = json.loads(file.read_text())["started"]
    assert [row["groups"] for row in rows] == [1, 2_000]
    for row in rows:
        assert min(row["start_s"], row["cpu_s"], row["status_s"]) > 0
    # A busy machine may be slower than the bounds: then the exit code says so.
    assert ended.returncode == bool(exceeded(Started(**rows[-1]))), ended.stderr


def test_a_bound_that_is_exceeded_is_named() -> None:
    assert exceeded(Started(1_000_000, START_S_MAX, 2.0, STATUS_S_MAX)) == []
    start, status = exceeded(Started(1_000_000, START_S_MAX + 0.1, 2.0, STATUS_S_MAX + 0.1))
    assert start.startswith("3.10 s until it leads 1,000,000 groups")
    assert status.startswith("0.50 s for `dispatcher status`")
