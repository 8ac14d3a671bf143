"""Java for Spark: installed with apt where there is none, the default one where 17 is not to be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher.errors import ConfigurationError
from dispatcher.nodes.installed import as_root
from dispatcher.nodes.java import ensure_java, has_java

#: Stands for apt-get: has only this package, and writes down what was installed.
_APT = """#!/bin/sh
case "$*" in
*{has}*) echo "$*" >> {told} ;;
*install*) echo "no such package"; exit 100 ;;
esac
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of the PATH, with what a script needs and without Java."""
    for name in ("sh", "env", "rm", "chmod"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def _program(path: Path, text: str = "#!/bin/sh\n") -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize("package", ["openjdk-17-jre-headless", "default-jre-headless"])
def test_the_package_that_there_is_gets_installed(path: Path, package: str) -> None:
    _program(path / "apt-get", _APT.format(has=package, told=path / "told"))
    _program(path / "sudo", '#!/bin/sh\nshift 1\nexec "$@"\n')
    as_root.cache_clear()
    said: list[str] = []
    assert not has_java()
    ensure_java(said.append)
    assert (path / "told").read_text().split()[-1] == package
    assert said[-1].startswith(f"Installing {package} with apt")


def test_without_apt_it_is_said_what_to_install(path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="openjdk-17-jre-headless missing: install with `sudo apt-get"
    ):
        ensure_java(pytest.fail)


def test_nothing_is_done_where_java_is(path: Path) -> None:
    _program(path / "java")
    ensure_java(pytest.fail)
