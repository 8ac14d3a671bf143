"""The Go client beside the shared suite: Go's own tools and tests, and its page."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from dispatcher.nodes import Servers
from tests.conformance.golang import GO_CLIENT, Workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_gofmt_and_vet_have_nothing_to_say(go_workspace: Workspace) -> None:
    formatted = subprocess.run(["gofmt", "-l", str(GO_CLIENT)], capture_output=True, text=True, check=True)
    assert formatted.stdout == ""
    vetted = go_workspace.go("vet", "./...")
    assert vetted.returncode == 0, vetted.stderr


def test_its_own_tests_pass(go_workspace: Workspace, servers: Servers) -> None:
    tested = go_workspace.go("test", "-v", ".", **servers.as_environment())
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "--- SKIP" not in tested.stdout


def test_a_program_uses_it_as_its_page_says(go_workspace: Workspace, tmp_path: Path) -> None:
    page = (GO_CLIENT / "README.md").read_text()
    [program] = re.findall(r"```go\n(.*?)```", page, re.DOTALL)
    [commands] = re.findall(r"^\$ (go mod edit (?:.*\\\n)*.*)$", page, re.MULTILINE)
    (tmp_path / "main.go").write_text(program)
    (tmp_path / "go.mod").write_text("module worker\n\ngo 1.19\n")
    in_place = commands.replace("./dispatcher/clients/go", str(GO_CLIENT))
    subprocess.run(in_place, shell=True, cwd=tmp_path, check=True)
    users = Workspace(tmp_path / "workspace")
    users.use(tmp_path)
    built = users.go("build", "-o", str(tmp_path / "worker"), ".", cwd=tmp_path)
    assert built.returncode == 0, built.stderr
