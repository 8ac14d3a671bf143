"""Where a message spends its time: the stages of each message are its whole latency."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.latency.__main__ import STAGES, arguments, stages_ms
from dispatcher.nodes import Servers

ROOT = Path(__file__).parents[2]
MS = 1_000_000


def test_the_stages_of_a_message_are_its_latency() -> None:
    sent = 7 * MS
    noted = [[3, sent, *(sent + at * MS for at in (1, 3, 6, 10))]]
    assert stages_ms(noted, {3: 15.0}) == dict(zip(STAGES, ([1.0], [2.0], [3.0], [4.0], [5.0]), strict=True))


def test_messages_that_took_a_detour_or_never_arrived_are_left_out() -> None:
    not_written, twice, lost = [1, 0, MS, MS, MS], [2, 0, *[MS] * 6], [3, 0, *[MS] * 4]
    assert stages_ms([not_written, twice, lost], {1: 9.0, 2: 9.0}) == {stage: [] for stage in STAGES}


def test_options_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments(["--rate", "0"])
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["exclusive", "sequenced"])
def test_a_dispatcher_says_where_its_messages_are(servers: Servers, tmp_path: Path, policy: str) -> None:
    file = tmp_path / "latency.json"
    options = ("--policy", policy, "--rate", "200", "--seconds", "2", "--json", str(file))
    ended = subprocess.run(
        [sys.executable, "-m", "bench.latency", *options],
        cwd=ROOT, env=servers.as_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(file.read_text())["p10_p50_p99_ms"]
    assert list(rows) == [*STAGES, "together", "no relay", "no relay, acks"]
    assert all(0 < row[0] <= row[1] <= row[2] for row in rows.values())
    assert "| Redis: the commit |" in ended.stdout
