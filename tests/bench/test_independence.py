"""The benchmark of stuck handlers runs with one command, and names a bound that does not hold."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.independence import (
    BEFORE_S,
    CONTENDERS,
    TROUBLES,
    Hands,
    Trouble,
    Wait,
    arguments,
    exceeded,
    typical,
)
from bench.relay.load import body
from dispatcher.nodes import Servers

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_contender_is_measured_and_with_adaptive_windows_nothing_stands_still(
    servers: Servers, tmp_path: Path
) -> None:
    """How long waits are depends on who else uses the processors; what a stuck group may take from others is
    proved with a virtual clock (G-5)."""
    file = tmp_path / "results.json"
    ended = subprocess.run(
        [
            sys.executable, "-m", "bench.independence", "--hang", "3", "--contenders", "adaptive,fixed",
            "--troubles", "4,6", "--rounds", "1", "--json", str(file),
        ],
        cwd=ROOT, env=servers.as_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "wait of the groups that are neither stuck nor large" in ended.stdout, ended.stderr
    measured = json.loads(file.read_text())
    stuck, half = str(TROUBLES[3]), str(TROUBLES[5])
    assert [measured["adaptive"][trouble]["standing_still"] for trouble in (stuck, half)] == [0, 0]
    for waits in measured["adaptive"], measured["fixed"]:
        assert [*waits] == [stuck, half]
        for wait in waits.values():
            assert 0 < wait["p50_ms"] <= wait["p95_ms"] <= wait["p99_ms"] <= wait["longest_ms"]
            assert wait["later_p99_ms"] > 0


def test_medians_of_the_rounds_count_and_what_stood_still_in_one() -> None:
    rounds = [
        Wait(1.0, 5.0, 9.0, 20.0, 0, 11.0),
        Wait(2.0, 4.0, 30.0, 50.0, 2, 13.0),
        Wait(3.0, 6.0, 8.0, 30.0, 0, 12.0),
    ]
    assert typical(rounds) == Wait(2.0, 5.0, 9.0, 30.0, 2, 12.0)


async def test_messages_that_are_sent_when_handlers_have_gone_on_count_apart() -> None:
    hands = Hands(Trouble(1), hang_s=1.0)
    hands.begin()
    begun_ns = time.monotonic_ns()
    for after_s in (0.0, BEFORE_S, BEFORE_S + 0.9, BEFORE_S + 1.0, BEFORE_S + 2.0):
        await hands.work(0, b"group-000", body(0, begun_ns + round(after_s * 1e9)))
    assert (len(hands.waits_ms), len(hands.later_waits_ms), hands.begun) == (3, 2, 5)


def test_what_is_exceeded_is_named() -> None:
    waits = {str(trouble): Wait(1.0, 5.0, 10.0, 20.0, 0, 90.0) for trouble in TROUBLES}
    assert exceeded({"adaptive": waits}) == []
    assert exceeded({name: waits for name in CONTENDERS if name != "adaptive"}) == []
    (slow,) = exceeded({"adaptive": waits | {"10 stuck": Wait(1.0, 5.0, 20.1, 30.0, 0, 0.0)}})
    assert slow.startswith("p99 20.1 ms with 10 stuck groups")
    (still,) = exceeded({"adaptive": waits | {"1 stuck": Wait(1.0, 5.0, 10.0, 30.0, 3, 0.0)}})
    assert still == "3 messages stand still: 1 stuck"


@pytest.mark.parametrize(
    "options",
    [("--hang", "0"), ("--rounds", "0"), ("--contenders", "adaptive,nobody"), ("--troubles", "1,7")],
)
def test_wrong_options_are_named(options: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments([*options])
    said = capsys.readouterr().err.splitlines()[-1]
    assert options[0] in said or "nobody" in said
