"""The benchmark of the SDK's consumers runs with one command, and says what costs too much."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.sdk.__main__ import arguments, exceeded, medians
from bench.sdk.consume import KINDS
from dispatcher.nodes import Servers

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_consumer_is_measured(servers: Servers, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    ended = subprocess.run(
        [sys.executable, "-m", "bench.sdk", "--messages", "2000", "--rounds", "1", "--json", str(file)],
        cwd=ROOT, env=servers.as_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    # So few messages may cost more than the limits, beside other tests.
    assert ended.returncode == 0 or "of CPU a message" in ended.stderr, ended.stderr
    document = json.loads(file.read_text())
    assert set(document["medians"]) == set(KINDS)
    for cost in document["medians"].values():
        assert cost["cpu_us"] > 0
        assert cost["per_second"] > 0


def test_what_costs_too_much_is_named() -> None:
    cheap = {"cpu_us": 20.0, "per_second": 9.0}
    dear = {"cpu_us": 51.0, "per_second": 9.0}
    rounds = {"sdk": [cheap, dear, dear], "sdk-blocking": [dear, dear, dear], "pika": [dear]}
    (problem,) = exceeded(medians(rounds))
    assert problem.startswith("sdk: 51.0")
    assert exceeded(medians({"sdk": [cheap, cheap, dear], "sdk-blocking": [dear]})) == []


@pytest.mark.parametrize(
    "option", [("--rounds", "0"), ("--messages", "0"), ("--groups", "0"), ("--body", "8")]
)
def test_wrong_options_are_named(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments([*option])
    assert "must be at least" in capsys.readouterr().err
