"""The programs of the clients, built from the checkout as their pages say. The checkout stays as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.errors import ConfigurationError
from dispatcher.nodes.installed import as_root, install
from tests.conformance import golang
from tests.once import common_folder, once

CLIENTS = Path(__file__).parents[2] / "clients"
NPM_TIMEOUT_S = 120
DEBIAN_JARS = "/usr/share/java/amqp-client.jar:/usr/share/java/slf4j-api.jar"
JAVA_PACKAGES = ["default-jdk-headless", "librabbitmq-client-java"]


def install_or_skip(packages: list[str]) -> None:
    try:
        install(packages, as_root(), lambda line: print(line, file=sys.stderr))
    except ConfigurationError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as `npm ci` makes it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")  # Debian's are older than what the client needs
    folder = tmp_path_factory.mktemp("node") / "package"
    shutil.copytree(CLIENTS / "node", folder, ignore=shutil.ignore_patterns("node_modules"))
    try:
        made = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True,
            timeout=NPM_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm ci did not end within {NPM_TIMEOUT_S} s")
    if made.returncode:
        pytest.skip(f"npm ci failed: {(made.stderr.splitlines() or [''])[0]}")
    return folder


@pytest.fixture(scope="session")
def jars() -> str:
    """The class path of amqp-client: Debian's, unless the environment names another one."""
    given = os.environ.get("AMQP_CLIENT_CLASSPATH")
    found = given or DEBIAN_JARS

    def is_there() -> bool:
        return shutil.which("javac") is not None and all(map(os.path.exists, found.split(os.pathsep)))

    if not is_there() and given is None:
        missing = JAVA_PACKAGES if shutil.which("javac") is None else JAVA_PACKAGES[1:]
        install_or_skip(missing)
    assert is_there(), f"there is no javac, or not all of {found}"
    return found


@pytest.fixture(scope="session")
def java_program(tmp_path_factory: pytest.TempPathFactory, jars: str) -> list[str]:
    """The command that runs the Java client, compiled as its page says."""
    common = common_folder(tmp_path_factory)
    build = common / "java"

    def make() -> None:
        sources = [str(path) for path in sorted((CLIENTS / "java").rglob("*.java"))]
        subprocess.run(["javac", "-cp", jars, "-d", str(build), *sources], check=True)

    once(common, "java", make)
    return ["java", "-cp", f"{jars}{os.pathsep}{build}", "Conformance"]


@pytest.fixture(scope="session")
def go_workspace(tmp_path_factory: pytest.TempPathFactory) -> golang.Workspace:
    if not golang.is_there():
        install_or_skip(golang.PACKAGES)
    return golang.Workspace(tmp_path_factory.mktemp("go"))


@pytest.fixture(scope="session")
def go_program(go_workspace: golang.Workspace) -> str:
    """The Go client's conformance program."""
    program = str(go_workspace.folder / "conformance")
    built = go_workspace.go("build", "-o", program, "./conformance")
    assert built.returncode == 0, built.stderr
    return program
