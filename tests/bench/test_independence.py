"""The benchmark of stuck handlers runs with one command, and names a bound that does not hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.independence import CONTENDERS, TROUBLES, Wait, arguments, exceeded
from dispatcher.nodes import Servers

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_trouble_is_measured_and_nothing_stands_still(servers: Servers, tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    ended = subprocess.run(
        [
            sys.executable, "-m", "bench.independence", "--hang", "1", "--contenders", "adaptive",
            "--rate", "200", "--json", str(file),
        ],
        cwd=ROOT, env=servers.as_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "wait of the groups that are not stuck" in ended.stdout, ended.stderr
    measured = json.loads(file.read_text())["adaptive"]
    assert list(measured) == [str(trouble) for trouble in TROUBLES]
    assert not any(wait["standing_still"] for wait in measured.values())


def test_what_is_exceeded_is_named() -> None:
    waits = {str(trouble): Wait(1.0, 10.0, 20.0, 0) for trouble in TROUBLES}
    assert exceeded({"adaptive": waits}) == []
    assert exceeded({name: waits for name in CONTENDERS if name != "adaptive"}) == []
    (slow,) = exceeded({"adaptive": waits | {"10 stuck": Wait(1.0, 20.1, 30.0, 0)}})
    assert slow.startswith("p99 20.1 ms with 10 stuck groups")
    (still,) = exceeded({"adaptive": waits | {"1 stuck": Wait(1.0, 10.0, 30.0, 3)}})
    assert still == "3 messages stand still: 1 stuck"


@pytest.mark.parametrize("options", [("--hang", "0"), ("--contenders", "adaptive,nobody")])
def test_wrong_options_are_named(options: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments([*options])
    said = capsys.readouterr().err.splitlines()[-1]
    assert options[0] in said or "nobody" in said
