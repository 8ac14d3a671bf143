"""The Java client as a Maven project. There is no repository but Debian's, which has other versions than
users take; they are given on the command line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.conformance.conftest import CLIENTS, install_or_skip

PACKAGES = [
    "maven", "junit5", "libmaven-compiler-plugin-java", "libmaven-resources-plugin-java",
    "librabbitmq-client-java",
]  # fmt: skip
REPOSITORY = Path("/usr/share/maven-repo")
#: What the project needs to compile, with the folder that has a folder for each version.
NEEDED = {
    "amqp-client": REPOSITORY / "com/rabbitmq/amqp-client",
    "maven-compiler-plugin": REPOSITORY / "org/apache/maven/plugins/maven-compiler-plugin",
    "maven-resources-plugin": REPOSITORY / "org/apache/maven/plugins/maven-resources-plugin",
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def as_numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def newest(folder: Path) -> str:
    return max((path.name for path in folder.glob("[0-9]*")), key=as_numbers)


@pytest.fixture(scope="module")
def debian_versions() -> dict[str, str]:
    """The newest version of what is needed that Debian's repository has."""
    if shutil.which("mvn") is None or not all(folder.is_dir() for folder in NEEDED.values()):
        install_or_skip(PACKAGES)
    return {artifact: newest(folder) for artifact, folder in NEEDED.items()}


def test_maven_compiles_it(debian_versions: dict[str, str], tmp_path: Path) -> None:
    project, repository = tmp_path / "java", tmp_path / "repository"
    shutil.copytree(CLIENTS / "java", project)
    shutil.copytree(REPOSITORY, repository, copy_function=os.symlink)  # Maven writes notes beside the files
    versions = [f"-D{artifact}.version={version}" for artifact, version in debian_versions.items()]
    made = subprocess.run(
        ["mvn", "--offline", "--batch-mode", f"-Dmaven.repo.local={repository}", *versions, "compile"],
        cwd=project, capture_output=True, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout
    classes = {path.stem for path in (project / "target/classes").rglob("*.class")}
    assert classes >= {path.stem for path in (CLIENTS / "java/src").rglob("*.java")}


def test_users_get_the_library_that_is_tried_or_a_later_one_of_its_series(
    debian_versions: dict[str, str],
) -> None:
    pom = ElementTree.parse(CLIENTS / "java/pom.xml")
    declared = as_numbers(pom.findtext(".//{*}amqp-client.version") or "")
    tried = as_numbers(debian_versions["amqp-client"])
    assert declared[0] == tried[0]
    assert declared >= tried
