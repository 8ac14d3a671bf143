"""Servers of another release, unpacked into a folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dispatcher.errors import ConfigurationError
from dispatcher.nodes.installed import (
    ROOT_VARIABLE,
    ensure_installed,
    erl_call,
    erlang_programs,
    rabbitmq_server,
    redis_server,
)

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for program in (
        "usr/bin/redis-server",
        "usr/lib/erlang/bin/erl",
        "usr/lib/erlang/lib/erl_interface-5.5/bin/erl_call",
        "usr/lib/rabbitmq/lib/rabbitmq_server-4.0.5/sbin/rabbitmq-server",
        "usr/lib/rabbitmq/lib/rabbitmq_server-4.0.5/sbin/rabbitmq-env",
    ):
        path = tmp_path / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)
    (tmp_path / "usr/bin/erl").symlink_to("../lib/erlang/bin/erl")
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    return tmp_path


def test_all_programs_are_those_of_the_folder(root: Path) -> None:
    ensure_installed(pytest.fail)
    assert rabbitmq_server() == root / "usr/lib/rabbitmq/lib/rabbitmq_server-4.0.5/sbin/rabbitmq-server"
    assert redis_server() == root / "usr/bin/redis-server"
    assert erlang_programs() == root / "usr/lib/erlang/bin"
    assert erl_call() == root / "usr/lib/erlang/lib/erl_interface-5.5/bin/erl_call"


def test_nothing_is_installed_for_a_folder_that_lacks_a_program(root: Path) -> None:
    (root / "usr/bin/redis-server").unlink()
    with pytest.raises(ConfigurationError) as raised:
        ensure_installed(pytest.fail)
    assert raised.value.problems == [
        f"{ROOT_VARIABLE}: {root} lacks redis-server; scripts/trixie makes such a folder"
    ]
    with pytest.raises(ConfigurationError, match="lacks redis-server"):
        redis_server()


def test_a_folder_that_is_there_is_not_made_again(root: Path) -> None:
    result = subprocess.run([str(SCRIPTS / "trixie")], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == (f"{root}\n", "")


def test_without_apt_it_is_said_in_one_line(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "realpath"):
        found = next(path for path in (Path("/usr/bin", name), Path("/bin", name)) if path.exists())
        (programs / name).symlink_to(found)
    environment = {**os.environ, "PATH": str(programs), ROOT_VARIABLE: str(tmp_path / "new")}
    result = subprocess.run(
        ["bash", str(SCRIPTS / "trixie")], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2, "tests that need it are skipped, and fail where making it fails"
    assert result.stderr.splitlines() == ["trixie: Debian's apt-get and dpkg-deb are needed"]
