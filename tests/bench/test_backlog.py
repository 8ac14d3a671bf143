"""The benchmark of a skewed backlog runs with one command, and names a bound that does not hold."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from bench.backlog import WorkedOff, arguments, exceeded, limit
from bench.relay.shapes import UNIFORM, ZIPF
from dispatcher.nodes import Servers

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("queue", ["classic", "quorum"])
def test_a_backlog_larger_than_the_look_ahead_is_worked_off(
    servers: Servers, tmp_path: Path, queue: str
) -> None:
    file = tmp_path / "results.json"
    small = ("--messages", "12000", "--rounds", "1", "--work", "0.0005", "--queue", queue)
    ended = subprocess.run(
        [sys.executable, "-m", "bench.backlog", *small, "--json", str(file)], cwd=ROOT,
        env=servers.as_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "the skewed one:" in ended.stdout, ended.stderr
    document = json.loads(file.read_text())
    # How fast it is says little beside other tests; that it ends says that nothing stands still.
    assert all(document[spread][0]["per_second"] > 100 for spread in (UNIFORM, ZIPF))


def test_no_dispatcher_is_faster_than_the_handlers_of_the_largest_group() -> None:
    options = arguments(["--messages", "20000", "--work", "0.001"])
    assert 7_500 < limit(ZIPF, options) < 9_000
    assert limit(UNIFORM, options) > 1_000_000
    assert limit(ZIPF, arguments([])) == math.inf


def test_what_is_exceeded_is_named() -> None:
    fast = {UNIFORM: WorkedOff(1_000.0, 0.5), ZIPF: WorkedOff(800.0, 1.0)}
    assert exceeded(fast, math.inf) == []
    assert exceeded(fast | {ZIPF: WorkedOff(400.0, 1.0)}, 500.0) == []
    (slow,) = exceeded(fast | {ZIPF: WorkedOff(799.0, 1.0)}, math.inf)
    assert slow.startswith("the skewed backlog: 0.80")
    (still,) = exceeded(fast | {ZIPF: WorkedOff(800.0, 1.1)}, math.inf)
    assert still == "zipf: nothing was handed over for 1.1 s"


@pytest.mark.parametrize("options", [("--messages", "1"), ("--rounds", "0"), ("--work", "-1")])
def test_wrong_options_are_named(options: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments([*options])
    assert options[0] in capsys.readouterr().err.splitlines()[-1]
