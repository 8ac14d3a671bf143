"""The fail-over benchmark runs with one command and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.failover.__main__ import arguments
from dispatcher.nodes import Management, Servers

ROOT = Path(__file__).parents[2]


def _bench(servers: Servers, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.failover", *options], cwd=ROOT, env=servers.as_environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_every_harm_is_measured(servers: Servers) -> None:
    ended = _bench(servers, "--rounds", "1", "--replicas", "2", "--heartbeat", "1", "--rate", "200")
    assert ended.returncode == 0, ended.stderr
    for harm in ("kill", "stop", "freeze", "rolling"):
        assert f"{harm} 1: " in ended.stdout
        assert f"│ {harm} " in ended.stdout
    assert "none lost, doubled, out of order or overlapping" in ended.stdout
    vhosts = [vhost["name"] for vhost in Management(servers.management_url).request("vhosts")]
    assert not [name for name in vhosts if name.startswith("bench-failover-")]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--harms", "kill,unkind"), "unknown: unkind"),
        (("--replicas", "1"), "must be at least 2"),
        (("--rounds", "0"), "at least 1"),
    ],
)
def test_wrong_options_are_named(
    options: tuple[str, str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments([*options])
    assert problem in capsys.readouterr().err.splitlines()[-1]
