"""Servers that are missing: installed with apt where that is permitted, after saying so; else named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.errors import ConfigurationError
from dispatcher.nodes.installed import ensure_installed, install

#: Stands for sudo: writes down which packages it should install, and installs nothing.
_SUDO = """#!/bin/sh
shift 4
echo "$@" > {told}
echo "what apt says"
exit {code}
"""
TO_INSTALL = "redis-server missing: install with `sudo apt-get install redis-server`"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What sudo was told to install; apt-get is in the PATH."""
    _program(tmp_path / "apt-get", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "told"


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _sudo(told: Path, code: int = 0) -> list[str]:
    _program(told.with_name("sudo"), _SUDO.format(told=told, code=code))
    return [str(told.with_name("sudo"))]


def _say_nothing(line: str) -> None:
    pytest.fail(f"said {line!r}")


def test_what_is_missing_is_installed_after_saying_so(told: Path) -> None:
    said: list[str] = []

    def say(line: str) -> None:
        assert not told.exists(), "said before it is done"
        said.append(line)

    install(["rabbitmq-server", "redis-server"], _sudo(told), say)
    assert said == ["Installing rabbitmq-server and redis-server with apt; their own services stay off."]
    assert told.read_text() == "rabbitmq-server redis-server\n"


def test_nothing_is_said_where_nothing_is_missing() -> None:
    ensure_installed(print)  # once: for the tests themselves
    ensure_installed(_say_nothing)


def test_without_the_right_to_install_one_line_says_what_to_install(told: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        install(["redis-server"], None, _say_nothing)
    assert raised.value.problems == [TO_INSTALL]


def test_without_apt_one_line_says_what_to_install(told: Path) -> None:
    told.with_name("apt-get").unlink()
    with pytest.raises(ConfigurationError) as raised:
        install(["redis-server"], _sudo(told), _say_nothing)
    assert raised.value.problems == [TO_INSTALL]
    assert not told.exists()


def test_an_installation_that_fails_says_so_and_what_apt_said(
    told: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        install(["redis-server"], _sudo(told, code=1), lambda _: None)
    assert raised.value.problems == [f"apt failed (its output is above). {TO_INSTALL}"]
    assert capsys.readouterr().err == "what apt says\n\n"
