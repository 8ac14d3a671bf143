"""The benchmark of a blocked group runs with one command, and others don't wait for the group."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.blocked import Measured, Wait, arguments, exceeded
from dispatcher.nodes import Servers

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_backlog_larger_than_the_look_ahead_is_parked_and_others_go_on(
    servers: Servers, tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    small = ("--messages", "11000", "--rate", "200", "--seconds", "2", "--stuck", "3")
    ended = subprocess.run(
        [sys.executable, "-m", "bench.blocked", *small, "--json", str(file)], cwd=ROOT,
        env=servers.as_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "the backlog was parked in" in ended.stdout, ended.stderr
    document = json.loads(file.read_text())
    # A busy machine makes messages wait, in both runs; what waits for the blocked group waits for seconds.
    assert document["behind"]["p50_ms"] < 1_000
    assert document["behind"]["peak_mb"] < 300
    assert (
        document["behind"]["p50_ms"]
        <= document["behind"]["second_p99_ms"]
        <= document["behind"]["longest_ms"]
    )
    assert 0 < document["parked_s"] <= document["acked_s"]
    assert document["stuck"] == 3  # it waits until the consumer has them, and nothing else is left


@pytest.mark.parametrize("stuck", ["0", "501"])
def test_how_many_are_stuck_is_refused(stuck: str) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments(["--stuck", stuck])
    assert ended.value.code == 2


def test_a_bound_that_is_exceeded_is_named() -> None:
    without = Wait(p50_ms=1.0, p99_ms=10.0, second_p99_ms=9.0, longest_ms=20.0, peak_mb=70.0)
    behind = replace(without, p99_ms=20.0, longest_ms=90.0, peak_mb=300.0)
    assert exceeded(Measured(10, 2, without, behind, 1.0, 2.0)) == []
    behind = replace(behind, p99_ms=20.1, peak_mb=301.0)
    p99, peak = exceeded(Measured(10, 2, without, behind, 1.0, 2.0))
    assert p99.startswith("p99 20.1 ms behind a blocked group")
    assert peak.startswith("301 MB")
