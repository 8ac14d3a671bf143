"""The memory benchmark runs with one command, and fifty thousand messages that wait cost little."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.memory import PEAK_MB_MAX as BOUND_MB
from bench.memory import Tracked, Waiting, exceeded, waiting
from bench.relay.rounds import Stage
from dispatcher.nodes import Servers

ROOT = Path(__file__).parents[2]
#: The program itself takes 66 MB, a full look-ahead of 10,000 messages of 1 kB with a group each about 40.
#: All that wait would take more.
PEAK_MB_MAX = 150


@pytest.mark.slow
async def test_fifty_thousand_messages_of_as_many_groups(servers: Servers) -> None:
    row = await waiting(Stage(servers), 50_000, 1_024, 50_000, seconds=2)
    assert row.settled > 0
    assert row.idle_mb < row.no_consumers_mb <= row.slow_consumers_mb < PEAK_MB_MAX


@pytest.mark.slow
async def test_large_messages_stay_below_the_bound(servers: Servers) -> None:
    """More of them than the byte budget has room for."""
    row = await waiting(Stage(servers), 4_000, 65_536, 1_000, seconds=2)
    assert row.settled > 0
    assert row.slow_consumers_mb < BOUND_MB


@pytest.mark.slow
def test_the_command_measures_and_says_so(servers: Servers, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    small = ("--messages", "2000", "--groups", "2000", "--sizes", "256", "--seconds", "1")
    ended = subprocess.run(
        [sys.executable, "-m", "bench.memory", *small, "--json", str(file)], cwd=ROOT,
        env=servers.as_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "each of 2,000 tracked groups:" in ended.stdout
    document = json.loads(file.read_text())
    assert [row["groups"] for row in document["waiting"]] == [1_000, 2_000]
    assert document["tracked"]["redis_bytes"] > 0


def test_a_bound_that_is_exceeded_is_named() -> None:
    fine, fat = Waiting(10, 256, 1_000, 60, 70, 80, 5), Waiting(10, 1_024, 1_000, 60, 70, 301, 5)
    assert exceeded([fine], Tracked(1_000_000, 400, 100, 16)) == []
    peak, group, buckets = exceeded([fine, fat], Tracked(1_000_000, 401, 100, 17))
    assert peak.startswith("301 MB with 10 messages of 1024 B")
    assert group.startswith("401 bytes for a tracked group")
    assert buckets.startswith("17 MB for 1,000,000 ids in 1,024 buckets")
