"""scripts/test: its exit code says whether every check and every test passed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMANDS = ("python", "ruff", "mypy", "lint-imports")


def clone(folder: Path, codes: dict[str, int]) -> Path:
    """A checkout whose commands do nothing but end with their code of `codes`, or with 0."""
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "test", folder / "scripts" / "test")
    (folder / "scripts" / "set-up").write_text(f"root={folder}\npython=$root/.venv/bin/python\n")
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name in COMMANDS:
        command = folder / ".venv" / "bin" / name
        command.write_text(f"#!/bin/sh\nexit {codes.get(name, 0)}\n")
        command.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("codes", "code"),
    [({}, 0), ({"ruff": 1}, 1), ({"mypy": 2}, 1), ({"lint-imports": 1}, 1), ({"python": 5}, 5)],
    ids=["all pass", "ruff", "mypy", "lint-imports", "tests"],
)
def test_the_exit_code_says_whether_all_passed(tmp_path: Path, codes: dict[str, int], code: int) -> None:
    script = clone(tmp_path, codes) / "scripts" / "test"
    ran = subprocess.run(["bash", script], text=True, capture_output=True, check=False, timeout=60)
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert ("FAILED: " in ran.stdout) == bool(codes.keys() - {"python"})
