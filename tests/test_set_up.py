"""scripts/set-up: says what it does in one line, and what pip said only when it failed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = """
[project]
name = "something"
version = "1.0"

[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
#: Makes the wheel by itself, so that nothing is fetched. The project has no extra `dev`: pip warns of that.
BACKEND = """
import zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "something-1.0-py3-none-any.whl"
    info = "something-1.0.dist-info/"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: something\\nVersion: 1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


def project(folder: Path, backend: str) -> Path:
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "set-up", folder / "scripts" / "set-up")
    (folder / "scripts" / "start").write_text('source "$(dirname "$0")/set-up"\necho "ready"\n')
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "backend.py").write_text(backend)
    return folder


def start(folder: Path) -> subprocess.CompletedProcess[str]:
    offline = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(
        ["bash", "-eu", str(folder / "scripts" / "start")], env=os.environ | offline, text=True,
        capture_output=True, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.slow
def test_what_pip_warns_of_is_not_shown(tmp_path: Path) -> None:
    first = start(project(tmp_path, BACKEND))
    assert (first.returncode, first.stdout) == (0, "ready\n"), first.stderr
    assert first.stderr.splitlines() == [f"Setting up {tmp_path}/.venv, once; this takes a minute."]
    assert start(tmp_path).stderr == "", "the second time there is nothing to do"
    (tmp_path / "backend.py").write_text("no Python")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.replace("1.0", "2.0"))
    failed = start(tmp_path)
    assert failed.returncode == 1
    assert "start: pip could not install the package: " in failed.stderr
    assert "invalid syntax" in failed.stderr, "what pip said"
