"""requirements.lock and sbom.cdx.json say what pyproject.toml asks for; `scripts/lock` makes them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
#: For people who work on the project; the lock is for those who install it.
NOT_LOCKED = ("dev", "docs")


def locked() -> dict[str, tuple[str, int]]:
    """Version and number of hashes of each package."""
    found = {}
    for entry in re.split(r"\n(?=[a-zA-Z])", (ROOT / "requirements.lock").read_text()):
        if said := re.match(r"([\w.-]+)==([\w.+-]+)", entry):
            found[canonicalize_name(said[1])] = said[2], len(re.findall(r"--hash=sha256:[0-9a-f]{64}", entry))
    return found


def test_the_lock_has_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(
            each
            for extra, requirements in project["optional-dependencies"].items()
            if extra not in NOT_LOCKED
            for each in requirements
        ),
    ]
    packages = locked()
    for requirement in map(Requirement, asked):
        version, _ = packages[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: scripts/lock"


def test_every_package_has_hashes() -> None:
    assert [name for name, (_, hashes) in locked().items() if not hashes] == []


def test_the_bill_of_materials_is_of_the_lock() -> None:
    bill = json.loads((ROOT / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    listed = {canonicalize_name(each["name"]): each["version"] for each in bill["components"]}
    assert listed == {name: version for name, (version, _) in locked().items()}, "scripts/lock"
