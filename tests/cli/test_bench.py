"""`dispatcher bench`: every benchmark of the checkout, called from anywhere with its own arguments."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.cli.bench import benchmarks
from dispatcher.errors import ConfigurationError

ROOT = Path(__file__).parents[2]


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from dispatcher.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, "bench", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_all_that_the_documentation_names_are_known_by_what_they_measure(tmp_path: Path) -> None:
    told = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    known = benchmarks(ROOT)
    assert set(re.findall(r"python -m bench\.([a-z_.]*[a-z])", told)) == {*known}
    listed = bench(tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.splitlines() == [f"{name:16} {measures}" for name, measures in known.items()]
    assert all(known.values())


def test_its_arguments_and_its_exit_code_are_the_benchmarks_own(tmp_path: Path) -> None:
    asked = bench(tmp_path, "relay", "--help")
    assert (asked.returncode, asked.stdout.split()[:4]) == (0, ["usage:", "python", "-m", "bench.relay"])
    refused = bench(tmp_path, "blocked", "--messages", "-1")
    assert refused.returncode == 2
    assert "python -m bench.blocked: error: " in refused.stderr


def test_what_is_no_benchmark_is_wrong_usage(tmp_path: Path) -> None:
    refused = bench(tmp_path, "command")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "unknown benchmark 'command'" in refused.stderr


def test_an_installation_has_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"no benchmarks in {tmp_path}: run this in a checkout"):
        benchmarks(tmp_path)
