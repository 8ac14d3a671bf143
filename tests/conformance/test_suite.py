"""Consumers in every language keep the protocol, and the suite finds those that don't."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dispatcher.conformance.scenes import SCENES
from dispatcher.nodes import Servers

ROOT = Path(__file__).parents[2]
NODE = ROOT / "clients" / "node"
PYTHON = [sys.executable, "-m", "dispatcher.conformance.python_consumer"]
WRONG = [sys.executable, "-m", "tests.conformance.wrong_consumer"]
#: Of a scene in the output.
OK, FAILED = "ok     ", "FAILED "

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def conformance(servers: Servers, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dispatcher", "conformance", "--", *command],
        cwd=ROOT, env={**os.environ, **servers.as_environment()}, capture_output=True, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def assert_conforms(tried: subprocess.CompletedProcess[str]) -> None:
    assert tried.returncode == 0, tried.stdout + tried.stderr
    marks = [line[: len(OK)] for line in tried.stdout.splitlines()[:-1]]
    assert marks == [OK] * (len(SCENES) + 1)  # and the verdict on the whole record


def test_the_python_sdk_conforms(servers: Servers) -> None:
    assert_conforms(conformance(servers, PYTHON))


def test_the_node_client_conforms(servers: Servers, node_modules: Path) -> None:
    assert_conforms(conformance(servers, ["node", str(node_modules / "conformance.js")]))


def test_the_java_client_conforms(servers: Servers, java_program: list[str]) -> None:
    assert_conforms(conformance(servers, java_program))


def test_the_go_client_conforms(servers: Servers, go_program: str) -> None:
    assert_conforms(conformance(servers, [go_program]))


def test_the_types_of_the_node_client_fit_its_example(node_modules: Path) -> None:
    checked = subprocess.run(["npm", "run", "types"], cwd=node_modules, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_own_tests_of_the_node_client_pass(node_modules: Path) -> None:
    page = {"PROTOCOL_PAGE": str(ROOT / "docs" / "protocol.md")}
    tested = subprocess.run(
        ["npm", "test"], cwd=node_modules, env={**os.environ, **page}, capture_output=True, text=True
    )
    assert tested.returncode == 0, tested.stdout


def test_the_own_test_of_the_java_client_passes(java_program: list[str]) -> None:
    command = [*java_program[:-1], "messagegroups.BundleTest", str(ROOT / "docs" / "protocol.md")]
    tested = subprocess.run(command, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stderr


def test_the_lock_file_names_no_registry() -> None:
    lock = (NODE / "package-lock.json").read_text()
    assert "integrity" in lock
    assert "resolved" not in lock


def test_wrong_consumers_are_found(servers: Servers) -> None:
    """Side by side: what shows most of them is that something is waited for in vain."""
    wrong = {"hasty": 1, "lossy": 0, "impatient": 2}
    with ThreadPoolExecutor(len(wrong)) as pool:
        found = list(pool.map(lambda how: conformance(servers, [*WRONG, how]), wrong))
    for scene, tried in zip(wrong.values(), found, strict=True):
        assert tried.returncode == 1
        lines = [line for line in tried.stdout.splitlines() if line.startswith((OK, FAILED))]
        assert [line[: len(OK)] for line in lines] == [OK] * scene + [FAILED], tried.stdout
        assert lines[-1].endswith(SCENES[scene].__doc__ or "no text")


def test_a_program_that_ends_by_itself_is_found(servers: Servers) -> None:
    tried = conformance(servers, ["true"])
    assert tried.returncode == 1
    assert tried.stdout.startswith(FAILED)


def test_a_program_that_can_not_be_run_is_refused(servers: Servers) -> None:
    tried = conformance(servers, ["/nonexistent/program"])
    assert (tried.returncode, tried.stdout) == (1, "")
    assert "No such file" in tried.stderr
