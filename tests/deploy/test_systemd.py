"""deploy/systemd/dispatcher.service: systemd takes it, it is closed, and it stops as the program does."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.service import process
from dispatcher.settings import units
from tests.deploy.live_metrics import check_with

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "dispatcher.service"
TEXT = UNIT.read_text()
ANALYZE = shutil.which("systemd-analyze")
#: systemd calls less than 2.0 OK; this is 1.2, in tenths as its threshold has them.
EXPOSURE_MAX = "15"

needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")


def _settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", TEXT, re.MULTILINE):
        found.setdefault(key, []).append(value)
    return found


SETTINGS = _settings()


def test_it_starts_the_program_of_the_image_with_options_that_exist() -> None:
    (line,) = SETTINGS["ExecStart"]
    program, *arguments = shlex.split(line)
    assert f"{Path(program).parent}" in (DEPLOY / "Dockerfile").read_text()
    result = subprocess.run(
        [sys.executable, "-m", "dispatcher", *arguments[:1], "--help"],
        env=os.environ | {"COLUMNS": "200", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert arguments[0] == "run"
    options = {option for option in arguments if option.startswith("-")}
    assert options <= set(re.findall(r"--?[\w-]+", result.stdout))


def test_it_waits_longer_for_the_stop_than_the_program_takes() -> None:
    (stop,) = SETTINGS["TimeoutStopSec"]
    assert units.parse_duration_ms(stop) > 1_000 * (process.STOP_S + process.LEDGER_STOP_S + 1)
    # The process that writes the ledger ignores SIGTERM, and may finish: only the main process being killed
    # first would end it.
    assert "KillMode" not in SETTINGS


def test_a_reload_is_the_signal_that_reads_the_file_again() -> None:
    assert SETTINGS["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_only_the_place_of_the_ledger_can_be_written_and_proc_stat_be_read() -> None:
    assert SETTINGS["ProtectSystem"] == ["strict"]
    assert SETTINGS["StateDirectory"] == ["dispatcher"]
    assert "ReadWritePaths" not in SETTINGS
    assert "ProcSubset" not in SETTINGS


def test_there_is_no_core_dump() -> None:
    assert SETTINGS["LimitCORE"] == ["0"]


@needs_systemd
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    """The program is not where it would be installed; another one stands for it."""
    assert ANALYZE is not None
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", TEXT, flags=re.MULTILINE))
    result = subprocess.run([ANALYZE, "verify", unit], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@needs_systemd
def test_systemd_calls_its_exposure_ok() -> None:
    assert ANALYZE is not None
    check_with(ANALYZE, "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_MAX}", UNIT)
