"""Two runs of the relay benchmark are compared, and a dispatcher that became slower is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.relay.compare import main
from bench.relay.report import Results, write_json
from bench.relay.rounds import Throughput
from dispatcher.nodes import Servers

ROOT = Path(__file__).parents[2]
#: Python imports a module `sitecustomize` when it starts. With this one each tick of a dispatcher burns as
#: much CPU time as its process has used since the tick before.
TWICE_AS_DEAR = """
import time
from dispatcher.service.session import Session

tick, last_s = Session._tick, time.process_time()

def dear(session):
    global last_s
    tick(session)
    until_s = 2 * time.process_time() - last_s
    while time.process_time() < until_s:
        pass
    last_s = time.process_time()

Session._tick = dear
"""


def _measured(servers: Servers, file: Path, *paths: Path) -> Path:
    environment = {
        **os.environ, **servers.as_environment(), "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT))),
    }  # fmt: skip
    few = ("--contenders", "exclusive", "--messages", "10000", "--rounds", "1", "--seconds", "0")
    subprocess.run(
        [sys.executable, "-m", "bench.relay", *few, "--json", str(file)],
        cwd=ROOT, env=environment, check=True, capture_output=True,
    )  # fmt: skip
    return file


@pytest.mark.slow
def test_a_planted_twofold_slowdown_is_told(
    servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(TWICE_AS_DEAR)

    def told() -> list[str]:
        before = _measured(servers, tmp_path / "before.json")
        slow = _measured(servers, tmp_path / "slow.json", tmp_path)
        code = main([str(before), str(slow), "--limit", "1.5"])
        lines = [line for line in capsys.readouterr().out.splitlines() if line.endswith("DEARER")]
        assert code == bool(lines)
        return [line for line in lines if "own CPU" in line]

    # Other programs on the same cores can make the first of the two as dear as the second.
    assert any(told() for _ in range(3))


def _written(file: Path, own_us: float | None, name: str = "dispatcher, exclusive") -> str:
    results = Results()
    results.add(name, Throughput(1, 10_000.0, own_us, 40.0, None))
    write_json(file, {}, results.rows("Shovel", "auto", "none"), {})
    return str(file)


@pytest.mark.parametrize(
    ("after_us", "limit", "code"), [(25.0, "1.3", 0), (27.0, "1.3", 1), (27.0, "1.4", 0)]
)
def test_the_limit_decides(tmp_path: Path, after_us: float, limit: str, code: int) -> None:
    before, after = _written(tmp_path / "before", 20.0), _written(tmp_path / "after", after_us)
    assert main([before, after, "--limit", limit]) == code


def test_what_only_one_run_has_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _written(tmp_path / "before", None)
    assert main([before, _written(tmp_path / "after", 90.0)]) == 0
    assert "own CPU" not in capsys.readouterr().out
    assert main([before, _written(tmp_path / "other", 20.0, "Shovel")]) == 1
    assert "nothing in common" in capsys.readouterr().err
    assert main([before, str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err
