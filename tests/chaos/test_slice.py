"""A slice of chaos, with another seed each time: `DISPATCHER_CHAOS_S=60 scripts/test tests/chaos`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.nodes.guard import descendants
from tests.service.harness import ROOT
from tests.waiting import wait_until

SECONDS = int(os.environ.get("DISPATCHER_CHAOS_S", "0"))
#: Servers start, and what is waiting at the end is handled.
TIMEOUT_S = SECONDS + 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + 30)]


def _command(folder: Path, seconds: float) -> list[str]:
    return [sys.executable, "-m", "tests.chaos", "--seconds", str(seconds), "--report", str(folder)]


@pytest.mark.skipif(not SECONDS, reason="set DISPATCHER_CHAOS_S to the seconds of chaos")
def test_everything_holds_for_a_minute(tmp_path: Path) -> None:
    run = subprocess.run(
        _command(tmp_path, SECONDS), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("seed: ")
    report = json.loads((tmp_path / "chaos.json").read_text())
    assert report["violations"] == []
    assert len(report["faults"]) > 10
    assert all(lane["handled"] > 1_000 for lane in report["lanes"].values())
    assert (tmp_path / "chaos.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(_command(tmp_path, 600), cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        wait_until(lambda: list((tmp_path / "record").glob("*.record")), 60, "the chaos to begin")
        started = descendants(run.pid)
        assert len(started) > 12  # servers, dispatchers, consumers, producers
        run.send_signal(number)
        assert run.wait(60) == 130
        assert run.stdout is not None
        assert "everything is ended" in run.stdout.read()
    wait_until(lambda: not [pid for pid in started if Path(f"/proc/{pid}/stat").exists()], 20)
