"""The wheel's build: modules are compiled where that is possible, and left as they are elsewhere."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
#: Stands for hatchling's class, which only the build of a wheel has; and what hatchling does with ours.
BASE = """
class BuildHookInterface:
    def __class_getitem__(cls, _): return cls
    root = "."
    app = property(lambda self: self)
    def display_warning(self, text): print(text)
"""
CALLS = """
import sys
from hatch_build import CompiledModules
hook, data = CompiledModules(), {"force_include": {}, "pure_python": True}
hook.initialize(sys.argv[1], data)
hook.finalize(sys.argv[1], data, "")
print(hook.dependencies(), data)
"""
#: Small modules, with classes and what these import: the others are compiled by `tcc` only, which is quick.
SMALL = ("errors.py", "core/ordered.py", "core/queue_ids.py", "core/rare_facts.py")
PURE = "{'force_include': {}, 'pure_python': True}"


def build(folder: Path, version: str, path: str) -> list[str]:
    """What the build of this version says, with the programs of this PATH."""
    package = folder / "hatchling/builders/hooks/plugin"
    package.mkdir(parents=True)
    (package / "interface.py").write_text(BASE)
    environment = {"PATH": path, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", CALLS, version], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_without_a_compiler_the_wheel_has_only_sources(tmp_path: Path) -> None:
    said, result = build(tmp_path, "standard", "")
    assert said.startswith("The modules are not compiled: there is no C compiler (")
    assert result == f"[] {PURE}"


def test_an_editable_installation_is_of_sources(tmp_path: Path) -> None:
    (result,) = build(tmp_path, "editable", os.environ["PATH"])
    assert result.endswith(PURE)


def test_the_compiler_of_this_python_makes_what_a_wheel_has(
    compiling: ModuleType, compilers: None, tmp_path: Path
) -> None:
    for name in SMALL:
        copy = tmp_path / "dispatcher" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        (copy.parent / "__init__.py").touch()
        shutil.copy2(ROOT / "dispatcher" / name, copy)
    made = compiling.compile_tree(tmp_path)  # the module, and what all modules of mypyc share
    asked = [sys.executable, "-c", "from dispatcher.core import rare_facts; print(rare_facts.__file__)"]
    run = subprocess.run(
        asked, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert Path(run.stdout.strip()) in made


def test_every_pattern_finds_modules(compiling: ModuleType) -> None:
    """A module that was renamed would be left as it is, and nobody would notice."""
    assert [pattern for pattern in compiling.HOT if not list(ROOT.glob(pattern))] == []
    assert [each for each in compiling.NOT_COMPILED if not (ROOT / each).is_file()] == []


def test_the_build_asks_for_the_versions_that_are_used_here(compiling: ModuleType) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert [wanted for wanted in compiling.REQUIREMENTS if f'"{wanted}"' not in project] == []


def test_the_build_asks_for_what_the_compiled_modules_import(compiling: ModuleType) -> None:
    """pip builds apart from everything that is installed. The types of a package that is missing are unknown,
    and mypyc refuses some modules without them."""
    imported = set()
    for path in compiling.hot_modules(ROOT):
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).partition(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
    packages = imported - sys.stdlib_module_names - {"dispatcher"}
    assert packages
    asked = {re.split(r"[\[<>=]", wanted)[0] for wanted in compiling.REQUIREMENTS}
    assert packages <= asked


def test_the_image_has_what_the_build_needs() -> None:
    assert "--no-install-recommends gcc libc6-dev" in (ROOT / "deploy/Dockerfile").read_text()
    allowed = (ROOT / "deploy/Dockerfile.dockerignore").read_text().split()
    assert {"!hatch_build.py", "!scripts/compile.py"} <= set(allowed)
